//go:build !linux

package child

import "syscall"

// attributes returns the process attributes of the command. The command gets its own process group, so that a signal
// from the terminal reaches only this program, which forwards it.
func attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
