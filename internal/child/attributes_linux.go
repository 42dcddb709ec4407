package child

import "syscall"

// attributes returns the process attributes of the command. The command gets its own process group, so a signal from
// the terminal reaches only this program, which forwards it. When this program dies, the kernel sends SIGTERM to the
// command.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
