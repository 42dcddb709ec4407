//go:build !linux

package child

import "syscall"

// attributes returns the process attributes of the command. The command gets its own process group.
// A signal from the terminal then reaches only this program, which passes it on.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
