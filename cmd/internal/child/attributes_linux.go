package child

import "syscall"

// attributes give the command a process group of its own: a signal from the terminal
// reaches it through the program, once. It ends when the program is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
