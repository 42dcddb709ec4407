package appcmd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Output keeps the latest output of an application in files: at least the last 8 MiB, and at most about 16 MiB. It
// is safe for concurrent use. It drops output that it cannot write, so that a full disk does not stop the
// application.
type Output struct {
	path string
	file atomic.Pointer[os.File] // appends; nil = the last file could not be opened
	size atomic.Int64            // size of file, including bytes that are being written
	turn atomic.Bool             // a goroutine is replacing file
}

// KeepOutput creates a file for the output of an application that this process runs. The file is below stateDir, the
// user's directory for durable state.
//
// KeepOutput also removes older output files of the application. It keeps the newest one, and those of runs that have
// not ended according to the records in runtimeDir.
func KeepOutput(runtimeDir, stateDir, app string) (*Output, error) {
	path := logPath(stateDir, app, os.Getpid())
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, opRuns, "the directory for the output of applications cannot be created")
	}
	dropEarlier(runtimeDir, dir, app)
	o := &Output{path: path}
	if err := o.open(); err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Output) open() error {
	f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return fault.Wrap(err, opRuns, "the output of the application cannot be kept")
	}
	o.size.Store(0)
	o.file.Store(f)
	return nil
}

// Path returns the path of the file.
func (o *Output) Path() string { return o.path }

// Write appends b to the file. It always reports success.
func (o *Output) Write(b []byte) (int, error) {
	if o.size.Add(int64(len(b))) > maxLog && o.turn.CompareAndSwap(false, true) {
		o.replace()
		o.turn.Store(false)
	}
	for f := o.file.Load(); f != nil; {
		_, err := f.Write(b)
		next := o.file.Load()
		if !errors.Is(err, os.ErrClosed) || next == f {
			break
		}
		f = next // the file was replaced meanwhile
	}
	return len(b), nil
}

// replace begins a new file. It first renames the current file, which then has the older part of the output.
func (o *Output) replace() {
	old := o.file.Load()
	if old == nil || os.Rename(o.path, o.path+oldSuffix) != nil {
		return
	}
	if o.open() != nil {
		o.file.Store(nil)
	}
	_ = old.Close()
}

// Close closes the file. It does not remove the file, so that quorate logs can read it. Call Close after the last
// Write.
func (o *Output) Close() error {
	if f := o.file.Swap(nil); f != nil {
		return f.Close()
	}
	return nil
}

// dropEarlier removes the output of ended runs of app, except the newest of these outputs.
func dropEarlier(runtimeDir, dir, app string) {
	notes, err := list(runtimeDir)
	if err != nil {
		return // without the records, every output may belong to a running process
	}
	ended := slices.DeleteFunc(outputs(dir, app), func(path string) bool { return writes(notes, path) })
	for _, path := range ended[:max(0, len(ended)-1)] {
		_ = os.Remove(path)
		_ = os.Remove(path + oldSuffix)
	}
}

// outputs returns the paths of the output of all runs of an application, the newest last.
func outputs(dir, app string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	changed := map[string]time.Time{}
	for _, e := range entries {
		rest, of := strings.CutPrefix(e.Name(), logName(app))
		if !of || !strings.HasSuffix(rest, logSuffix) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		path := filepath.Join(dir, e.Name())
		out, changed[path] = append(out, path), info.ModTime()
	}
	slices.SortFunc(out, func(a, b string) int { return changed[a].Compare(changed[b]) })
	return out
}
