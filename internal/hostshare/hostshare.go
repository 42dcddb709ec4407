// Package hostshare lets the nodes of one user on one host find each other. A node can learn whether another process
// uses a shared directory, and which nodes run at which addresses. The nodes can also share a secret.
//
// The package owns the format of three kinds of files, which are all private to the user:
//
//   - the lock of a shared directory
//   - notes, in which each running node writes its id and addresses
//   - the shared secret
//
// A running node keeps its note locked. When its process ends, the kernel releases this lock, and other nodes then
// ignore the note. The package has no goroutines. Its functions do I/O on the local disk, and several processes may
// call them at the same time.
package hostshare

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Note describes a node for the other nodes of its user on the host.
type Note struct {
	Node   string   `json:"node"` // node id
	Role   string   `json:"role"`
	Gossip string   `json:"gossip"` // host:port, to join
	Admin  string   `json:"admin"`  // path of its admin socket
	Apps   []string `json:"apps"`
	PID    int      `json:"pid"`
	Run    *Run     `json:"run,omitempty"` // nil in the notes of a shared directory
}

// Run describes a "quorate run" process, for the commands that list and stop such processes.
type Run struct {
	HTTP    string    `json:"http,omitempty"` // host:port of the HTTP API; empty for a run file
	GRPC    string    `json:"grpc,omitempty"`
	AppPort int       `json:"appPort,omitempty"` // 0 = the application is not called
	Command string    `json:"command,omitempty"` // command of the application; empty = none was started
	Started time.Time `json:"started"`
	DataDir string    `json:"dataDir,omitempty"`
	Log     string    `json:"log,omitempty"`  // path of the output of the application; empty = not kept
	File    string    `json:"file,omitempty"` // run file whose applications the process runs
}

const (
	noteSuffix = ".node"
	maxNote    = 64 << 10 // bytes
	maxNotes   = 1024     // maximum directory entries that List reads
	formatNote = 1
)

// file is the content of a note file. A reader skips unknown fields, so new fields do not need a new format.
type file struct {
	Format int `json:"format"`
	Note
}

// Presence is the note of a running node in a shared directory.
type Presence struct {
	path string
	f    *os.File
}

// Announce writes a note into dir, which it creates if necessary. The note is valid until Presence.Close or the end of
// the process. Announce returns fault.Denied if other users can access dir.
func Announce(dir string, n Note) (*Presence, error) {
	if err := Private(dir); err != nil {
		return nil, err
	}
	text, err := json.Marshal(file{formatNote, n})
	if err != nil {
		return nil, err
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // rand.Read never fails: it aborts the program instead
	p := &Presence{path: filepath.Join(dir, hex.EncodeToString(b[:])+noteSuffix)}
	return p, p.write(text)
}

// write writes the note to a temporary file and locks this file. It then renames the file, so that other processes see
// only a note that is complete and locked.
func (p *Presence) write(text []byte) error {
	fresh := p.path + ".new"
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return trouble(err, "a note for other nodes of this host cannot be written: "+fresh)
	}
	_, err = f.Write(text)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(fresh, p.path)
	}
	if err != nil {
		return errors.Join(trouble(err, "a note for other nodes of this host cannot be written: "+fresh), f.Close(),
			os.Remove(fresh))
	}
	p.f = f
	return nil
}

// Close removes the note. It must be called only once.
func (p *Presence) Close() error {
	err := os.Remove(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, p.f.Close())
}

// List returns the notes of all live nodes in dir, sorted by node id. It removes the notes of nodes that ended without
// Close. If dir does not exist, the list is empty. List reads at most 1024 directory entries. It returns fault.Denied
// if other users can access dir.
func List(dir string) ([]Note, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, trouble(err, "the notes of other nodes of this host cannot be read: "+dir)
	}
	if err := Private(dir); err != nil {
		return nil, err
	}
	var out []Note
	for _, e := range entries[:min(len(entries), maxNotes)] {
		if strings.HasSuffix(e.Name(), noteSuffix) {
			if n, alive := read(filepath.Join(dir, e.Name())); alive {
				out = append(out, n)
			}
		}
	}
	slices.SortFunc(out, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.PID, b.PID))
	})
	return out, nil
}

// read returns the note in a file. alive is false if the node of the note has ended, or if the file cannot be read. If
// the node has ended, read removes the file. This is safe, because no node uses the same file name again.
func read(path string) (n Note, alive bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return n, false
	}
	defer func() { _ = f.Close() }()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		_ = os.Remove(path)
		return n, false
	}
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	var v file
	if err != nil || json.Unmarshal(text, &v) != nil || v.Format != formatNote {
		return n, false
	}
	return v.Note, true
}

// Hold is the lock on a shared directory.
type Hold struct{ f *os.File }

// holdSuffix is the suffix of the lock file, which is beside the locked directory. The lock file is never removed. If
// it were, two processes could hold the lock: one with the removed file, and one with a new file.
const holdSuffix = ".holder"

// TryHold locks dir, or returns false if another process has the lock. It creates the parent directory if necessary.
func TryHold(dir string) (*Hold, bool, error) {
	path := filepath.Clean(dir) + holdSuffix
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, false, trouble(err, "the directory above the data directory cannot be made: "+filepath.Dir(path))
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, trouble(err, "the data directory cannot be used: "+dir)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &Hold{f}, true, nil
	}
	_ = f.Close() // nothing was written
	// CIFS reports a lock of another process as EACCES. The file was opened for writing, so no permission is missing.
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EACCES) {
		return nil, false, nil
	}
	return nil, false, trouble(err, "the data directory cannot be locked: "+dir)
}

// failureInterval is the minimum time between two log records of failed attempts to lock a directory.
const failureInterval = time.Minute

// Await locks dir. If that is not possible, it tries again after each pause until ctx ends. It logs failures, such as
// too many open files, but does not return them, because they may be temporary. The only possible error is that of ctx.
func Await(ctx context.Context, dir string, pause time.Duration, log *slog.Logger) (*Hold, error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for logged := (time.Time{}); ; {
		h, ok, err := TryHold(dir)
		if ok {
			return h, nil
		}
		if err != nil && time.Since(logged) >= failureInterval {
			logged = time.Now()
			log.Warn("the data directory cannot be locked; trying again", "data_dir", dir, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Release unlocks the directory. It must be called only once.
func (h *Hold) Release() error { return h.f.Close() }

// Secret returns the path of the file with the given name in dir, which contains a shared secret. If the file does not
// exist, Secret creates it with the text that fresh returns. Only this user can read the file. If several processes
// call Secret at the same time, all of them use the same file. Secret returns fault.Denied if other users can access an
// existing file.
func Secret(dir, name string, fresh func() string) (string, error) {
	path := filepath.Join(dir, name)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = onlyMine(path)
		}
		return path, err
	}
	f, err := os.CreateTemp(dir, name+".*") // mode 0600
	if err != nil {
		return "", trouble(err, "a secret cannot be made in "+dir)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(fresh() + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		if err = os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
			err = nil // another process was faster
		}
	}
	if err != nil {
		return "", trouble(err, "a secret cannot be made in "+dir)
	}
	return path, nil
}

// Private creates dir if necessary, so that only this user can access it. It returns fault.Denied if other users can
// access dir. For example, another user may have created dir in a shared parent directory.
func Private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return trouble(err, "the directory for what nodes of this host share cannot be made: "+dir)
	}
	return onlyMine(dir)
}

// onlyMine returns fault.Denied if a file belongs to another user, is a symbolic link, or is accessible to others.
func onlyMine(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return trouble(err, "it cannot be read: "+path)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode()&os.ModeSymlink != 0 || info.Mode().Perm()&0o077 != 0 || !ok ||
		int64(owner.Uid) != int64(os.Geteuid()) {
		return &fault.Error{Code: fault.Denied, Op: "hostshare", Key: path,
			Msg: fmt.Sprintf("%s can be accessed by other users (mode %04o)", path, info.Mode().Perm()),
			Hint: "change its owner to this user and run chmod go= on it, or set XDG_RUNTIME_DIR and --data-dir to " +
				"private directories"}
	}
	return nil
}

func trouble(err error, msg string) error {
	e := &fault.Error{Code: fault.Internal, Op: "hostshare", Msg: msg, Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Code, e.Hint = fault.Denied, "this user may not write there: grant access, or choose another "+
			"--data-dir and XDG_RUNTIME_DIR"
	case errors.Is(err, syscall.ENOSPC):
		e.Code, e.Hint = fault.Unavailable, "the disk is full: free some space"
	}
	return e
}
