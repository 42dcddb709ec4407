package actorhost

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/internal/fault"
)

// holdings implements actors.Holdings. The string is the path of a directory with one empty file for each application
// that may have actors in memory. The files need not survive a power failure, which ends the applications too.
type holdings string

func (t holdings) path(app string) string { return filepath.Join(string(t), url.PathEscape(app)) }

// Begin implements actors.Holdings.
func (t holdings) Begin(app string) (held bool, err error) {
	if err := os.MkdirAll(string(t), 0o700); err != nil {
		return false, fault.Wrap(err, "actorhost.Begin", "creating a directory for the applications with actors")
	}
	f, err := os.OpenFile(t.path(app), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return true, nil
	}
	if err != nil {
		return false, fault.Wrap(err, "actorhost.Begin", "recording that an application hosts actors")
	}
	return false, f.Close()
}

// End implements actors.Holdings.
func (t holdings) End(app string) error {
	if err := os.Remove(t.path(app)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "actorhost.End", "recording that an application holds no actors")
	}
	return nil
}
