package backups

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
)

// directory stores backups as files.
type directory struct {
	path   string
	prefix string // of the names of backups
}

func (d directory) String() string { return d.path }

// partialSuffix is the end of the name of a file that is not complete.
const partialSuffix = ".partial"

// store implements target.
func (d directory) store(_ context.Context, name string, write func(io.Writer) error) (stored, error) {
	d.removePartial()
	f, err := os.CreateTemp(d.path, "."+name+".*"+partialSuffix)
	if err != nil {
		return nil, d.failed("a backup cannot be written", err)
	}
	one := file{directory: d, temporary: f.Name(), name: filepath.Join(d.path, name)}
	disk := &checked{w: f}
	err = write(disk)
	if disk.err != nil {
		err = d.failed("a backup cannot be written", disk.err)
	} else if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		one.discard()
		return nil, err
	}
	return one, nil
}

// removePartial removes incomplete files of scheduled backups. Such files remain if a process is killed during a
// backup. removePartial keeps all other files, because other clusters may use the same directory. Only the node that
// has the claim may call it.
func (d directory) removePartial() {
	own := regexp.MustCompile(`^\.` + regexp.QuoteMeta(d.prefix) + `-\d{8}T\d{6}Z\.qs\..*` +
		regexp.QuoteMeta(partialSuffix) + `$`)
	entries, _ := os.ReadDir(d.path) // files that cannot be listed are kept
	for _, e := range entries {
		if own.MatchString(e.Name()) {
			_ = os.Remove(filepath.Join(d.path, e.Name()))
		}
	}
}

// failed adds a hint to an error of the operating system.
func (d directory) failed(msg string, err error) error {
	hint := "the user of the node must be able to write to the directory"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "create the directory, or mount its disk"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "free space there, or lower backup: keep"
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return &fault.Error{Code: fault.Unavailable, Op: "backups.directory", Msg: msg + " to " + d.path, Err: err,
		Hint: hint}
}

// trim implements target. It ignores the list of names, because the names of the files in the directory show which
// backups belong to this cluster.
func (d directory) trim(_ context.Context, _ []string, keep int) ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, d.failed("the directory cannot be read", err)
	}
	ours := regexp.MustCompile(`^` + regexp.QuoteMeta(d.prefix) + `-\d{8}T\d{6}Z\.qs$`)
	var names []string // in the order of their times
	for _, e := range entries {
		if ours.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	var errs []error
	for _, name := range names[:max(0, len(names)-keep)] {
		if err := os.Remove(filepath.Join(d.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(errs...)
}

// file is a complete backup in a directory. It has a temporary name until publish.
type file struct {
	directory directory
	temporary string
	name      string
}

func (f file) read(_ context.Context, use func(io.Reader) error) error {
	r, err := os.Open(f.temporary)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return use(r)
}

func (f file) publish() error {
	defer f.discard()
	if err := durable.Publish(f.temporary, f.name, false); err != nil {
		return f.directory.failed("a backup cannot be given its name", err)
	}
	return nil
}

// discard removes the temporary name of the file.
func (f file) discard() { _ = os.Remove(f.temporary) }

// checked is an io.Writer that passes all data to w and keeps the last error of w.
type checked struct {
	w   io.Writer
	err error
}

func (c *checked) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		c.err = err
	}
	return n, err
}
