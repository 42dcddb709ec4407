// Package durable stores small files that are always replaced as a whole. After a crash or power loss, a file has
// either its old or its new content. Reading detects damage.
//
// A file has two lines: the content, for instance JSON, and the CRC-32C of the content. Write writes a temporary file,
// syncs it, renames it and then syncs the directory.
//
// The package owns that format, and the temporary file with the suffix ".tmp" beside each file. It has no goroutines.
// Only one goroutine or process at a time may write a file.
package durable

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Suffix is the suffix of the temporary file that Write creates beside a file. A crash may leave it behind. The next
// Write replaces it.
const Suffix = ".tmp"

// ErrDamaged is the error of Read for a file whose checksum is missing or does not match its content.
var ErrDamaged = errors.New("its checksum does not match")

// Write replaces the content of the file with body, which must be one line. When Write returns nil, the whole content
// is on disk. After an error, the file has either the old or the new content. If step is not nil, Write calls it with
// "written" after writing and with "renamed" after renaming. Tests use step to simulate a crash.
func Write(path string, body []byte, step func(string)) error {
	if step == nil {
		step = func(string) {}
	}
	return write(osFiles{}, path, body, step)
}

func write(fsys files, path string, body []byte, step func(string)) error {
	if bytes.IndexByte(body, '\n') >= 0 {
		return fmt.Errorf("%s: its content is more than one line", path)
	}
	f, err := fsys.create(path + Suffix)
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
	if err := fsys.rename(path+Suffix, path); err != nil {
		return err
	}
	step("renamed")
	return fsys.syncDir(filepath.Dir(path))
}

// Read returns the content of the file. The error is fs.ErrNotExist if there is no file, ErrDamaged if the checksum
// is wrong, or an I/O error.
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

// Sum returns the checksum line of body, without the newline.
func Sum(body []byte) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

// Publish renames a file and syncs the directory of the new path. The content of the file must be complete and synced.
//
// If a file exists at the new path, Publish overwrites it if replace is true, and returns fs.ErrExist if replace is
// false. If replace is false, the old path may remain after success as a second link to the file. The caller must then
// remove this link.
func Publish(current, final string, replace bool) error {
	var err error
	if replace {
		err = os.Rename(current, final)
	} else if err = os.Link(current, final); err != nil && !errors.Is(err, fs.ErrExist) { // links are not supported
		err = renameNew(current, final)
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(final))
}

// renameNew renames a file if no file has the new name, and returns fs.ErrExist otherwise. The check and the renaming
// are not atomic.
func renameNew(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fs.ErrExist
	}
	return os.Rename(from, to)
}

// SyncDir syncs a directory, which makes its file names durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// files is the part of a file system that Write needs.
type files interface {
	create(path string) (file, error) // truncates an existing file
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
