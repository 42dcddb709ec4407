//go:build !linux

package proof

import (
	"context"
	"errors"
	"flag"
)

// Command returns a function that always fails, because campaigns need Linux.
func Command(*flag.FlagSet, string) func(context.Context) error {
	return func(context.Context) error {
		return errors.New("network namespaces, loop devices and freezing of file systems exist on Linux only")
	}
}
