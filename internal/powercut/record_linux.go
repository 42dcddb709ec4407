//go:build quorate_powercut

package powercut

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Recorder writes the file operations of this process to a trace. It is safe for concurrent use.
type Recorder struct {
	root  string // operations below this directory are recorded
	trace int
	sync  time.Duration // how long a sync takes

	mu     sync.Mutex
	files  map[int]uint64 // by descriptor: the numbers of open files below root
	opened uint64
	syncs  atomic.Uint64
}

// RecordFiles starts to record the file operations of this process below a directory. It writes the records to a trace
// file, which it creates or truncates. Files that are already open are not recorded. If a record cannot be written, the
// process aborts.
//
// A sync of a recorded file does not reach the device. Instead, it takes the given time, so that a test can cut the
// power meanwhile.
func RecordFiles(root, trace string, sync time.Duration) (*Recorder, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Open(trace, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	r := &Recorder{root: root, trace: fd, sync: sync, files: map[int]uint64{}}
	hook := r.call
	syscall.FileHook.Store(&hook)
	return r, nil
}

// Note writes a line of text to the trace, for example which write was acknowledged.
func (r *Recorder) Note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(opNote, 0, 0, []byte(text), nil)
}

// put appends a record to the trace. It must not call hooked functions, because the hook would record the call. The
// caller holds r.mu.
func (r *Recorder) put(op byte, a, b uint64, first, second []byte) {
	buf := appendRecord(nil, op, a, b, first, second)
	for len(buf) > 0 {
		n, err := rawWrite(r.trace, buf)
		if err != nil {
			_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
		}
		buf = buf[n:]
	}
}

// at returns path relative to r.root, or "" if path is not below r.root. The parameter path is absolute, or relative to
// the directory with the descriptor dirfd.
func (r *Recorder) at(dirfd int, path string) string {
	const cwd = -100
	if !filepath.IsAbs(path) {
		link := "/proc/self/cwd"
		if dirfd != cwd {
			link = "/proc/self/fd/" + strconv.Itoa(dirfd)
		}
		dir, err := os.Readlink(link)
		if err != nil {
			return ""
		}
		path = filepath.Join(dir, path)
	}
	rel, err := filepath.Rel(r.root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return ""
	}
	return rel
}

// call is the hook in syscall.FileHook. It records a file operation, or returns a function that records it afterwards.
// skip is true for a sync of a recorded file, so that the sync does not reach the device.
func (r *Recorder) call(c syscall.FileCall) (after func(int, error), skip bool) {
	switch c.Name {
	case "open":
		return r.open(c), false
	case "rename", "link", "unlink", "mkdir":
		return r.name(c), false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	file, ok := r.files[c.FD]
	if !ok {
		return nil, false
	}
	switch c.Name {
	case "close":
		delete(r.files, c.FD)
	case "pwrite":
		r.put(opWrite, file, uint64(c.A), c.Data, nil)
	case "write":
		at, err := syscall.Seek(c.FD, 0, 1)
		if err != nil {
			return nil, false
		}
		if flags, _, e := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(c.FD), syscall.F_GETFL, 0); e == 0 &&
			flags&syscall.O_APPEND != 0 {
			var st syscall.Stat_t
			if syscall.Fstat(c.FD, &st) == nil {
				at = st.Size
			}
		}
		r.put(opWrite, file, uint64(at), c.Data, nil)
	case "truncate":
		r.put(opTruncate, file, uint64(c.A), nil, nil)
	case "allocate":
		if c.A == 0 { // with another mode, the size does not change
			r.put(opExtend, file, uint64(c.B+c.C), nil, nil)
		}
	case "sync":
		number := r.syncs.Add(1)
		r.put(opSyncBegins, file, number, nil, nil)
		return func(int, error) {
			time.Sleep(r.sync)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.put(opSynced, file, number, nil, nil)
		}, true
	}
	return nil, false
}

// open handles the opening of a file or directory. The hook calls the returned function afterwards, to record the
// opening if it was successful. open returns nil if the path is not below r.root.
func (r *Recorder) open(c syscall.FileCall) func(int, error) {
	path := r.at(c.FD, c.Path)
	if path == "" {
		return nil
	}
	return func(fd int, err error) {
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.opened++
		r.files[fd] = r.opened
		var flags uint64
		if c.A&syscall.O_TRUNC != 0 {
			flags = truncates
		}
		r.put(opOpen, r.opened, flags, []byte(path), nil)
	}
}

// name handles a rename, link, unlink or mkdir. The hook calls the returned function afterwards, to record the
// operation if it was successful. name returns nil if the path is not below r.root.
func (r *Recorder) name(c syscall.FileCall) func(int, error) {
	path, to := r.at(c.FD, c.Path), ""
	if c.To != "" {
		to = r.at(c.FD2, c.To)
	}
	if path == "" {
		return nil
	}
	op := map[string]byte{"rename": opRename, "link": opLink, "unlink": opUnlink, "mkdir": opMkdir}[c.Name]
	return func(_ int, err error) {
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.put(op, 0, 0, []byte(path), []byte(to))
	}
}

// rawWrite is the write system call without the hook.
func rawWrite(fd int, p []byte) (int, error) {
	start := unsafe.Pointer(unsafe.SliceData(p))
	n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(start), uintptr(len(p)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
