// Package durable keeps small files that are replaced whole: after a crash or a power cut
// at any moment there is the old content or the new one, and damage is noticed.
//
// A file is one line, for instance JSON, and a second line with the CRC-32C of the first.
// It is written beside its place, forced to disk, renamed, and the directory is forced to
// disk.
//
// It owns that form and the name with the suffix ".tmp" beside each file. It must never
// know what is in a file. It has no goroutines; one writer of a file at a time.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Suffix is that of the file that is being written. A crash may leave it behind; the next
// Write replaces it.
const Suffix = ".tmp"

// ErrDamaged is what Read returns for a file that is not what was written.
var ErrDamaged = errors.New("its checksum does not match")

// Write replaces the file with one that holds body, which must be one line. It is on disk,
// whole, when Write returns nil; after an error either content may be there. step, unless
// it is nil, is called with "written" and "renamed" when that is done: crash points for
// tests.
func Write(path string, body []byte, step func(string)) error {
	if step == nil {
		step = func(string) {}
	}
	return write(osFiles{}, path, body, step)
}

func write(fs files, path string, body []byte, step func(string)) error {
	if bytes.IndexByte(body, '\n') >= 0 {
		return fmt.Errorf("%s: its content is more than one line", path)
	}
	f, err := fs.create(path + Suffix)
	if err != nil {
		return err
	}
	if _, err = io.WriteString(f, string(body)+"\n"+Sum(body)+"\n"); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	step("written")
	if err := fs.rename(path+Suffix, path); err != nil {
		return err
	}
	step("renamed")
	return fs.syncDir(filepath.Dir(path))
}

// Read returns what the file holds. Errors: fs.ErrNotExist, ErrDamaged, and what the disk
// says.
func Read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(b)
}

func parse(b []byte) ([]byte, error) {
	body, sum, ok := bytes.Cut(b, []byte{'\n'})
	if !ok || strings.TrimSpace(string(sum)) != Sum(body) {
		return nil, ErrDamaged
	}
	return body, nil
}

// Sum is the checksum line of body, without its end.
func Sum(body []byte) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

// SyncDir forces the names in dir to disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// files is what Write needs of a file system.
type files interface {
	create(path string) (file, error) // empty, also if there was one
	rename(from, to string) error
	syncDir(dir string) error
}

type file interface {
	io.WriteCloser
	Sync() error
}

type osFiles struct{}

func (osFiles) create(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (osFiles) rename(from, to string) error { return os.Rename(from, to) }

func (osFiles) syncDir(dir string) error { return SyncDir(dir) }
