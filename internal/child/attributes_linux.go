package child

import "syscall"

// attributes returns the process attributes of the command. The command gets its own process group. So a signal from
// the terminal reaches only this program, and this program forwards the signal. If this program dies, the kernel sends
// a signal to the command. The parameter death is this signal.
func attributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}
