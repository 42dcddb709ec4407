//go:build !linux

package child

import "syscall"

// attributes give the command a process group of its own: a signal from the terminal
// reaches it through the program, once.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
