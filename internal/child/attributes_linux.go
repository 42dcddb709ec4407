package child

import "syscall"

// attributes returns the process attributes of the command. The command gets its own process group, so that a signal
// from the terminal reaches only this program, which forwards it. If this program dies, the kernel sends the given
// signal to the command.
func attributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}
