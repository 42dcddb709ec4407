// Package neighbour lets the nodes of one user on one host find each other: which of them
// holds the directory they share, which are alive and where, and the secret they share.
//
// It owns the form of three kinds of files: the lock of a shared directory, the notes of
// live nodes in the user's runtime directory, and a secret that whoever comes first makes.
// All of them are private to the user. That a node is alive is said by a lock on its note,
// which the kernel drops when the process ends, however it ends. It must never know what a
// node does. It has no goroutines; its functions do I/O on local disk and are safe to be
// called by several processes at a time.
package neighbour

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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Note is what a node tells its neighbours.
type Note struct {
	Node   string   `json:"node"` // node id
	Role   string   `json:"role"`
	Gossip string   `json:"gossip"` // host:port, to join
	Admin  string   `json:"admin"`  // path of its admin socket
	Apps   []string `json:"apps"`
	PID    int      `json:"pid"`
}

const (
	noteSuffix = ".node"
	maxNote    = 64 << 10 // bytes
	maxNotes   = 1024     // read at a time
	formatNote = 1
)

// file is a note on disk. Unknown fields are skipped, so some may be added under one format.
type file struct {
	Format int `json:"format"`
	Note
}

// Presence is the note of a node that is alive.
type Presence struct {
	path string
	f    *os.File
}

// Announce leaves a note in dir, which is made if need be, for as long as the process lives
// or until Close. Errors: denied if others can write to dir.
func Announce(dir string, n Note) (*Presence, error) {
	if err := Private(dir); err != nil {
		return nil, err
	}
	text, err := json.Marshal(file{formatNote, n})
	if err != nil {
		return nil, err
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the program instead
	p := &Presence{path: filepath.Join(dir, hex.EncodeToString(b[:])+noteSuffix)}
	return p, p.write(text)
}

// write makes the note seen only once it is locked and complete.
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
		return errors.Join(trouble(err, "a note for other nodes of this host cannot be written: "+fresh), f.Close(), os.Remove(fresh))
	}
	p.f = f
	return nil
}

// Close takes the note back. It is called once.
func (p *Presence) Close() error {
	err := os.Remove(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, p.f.Close())
}

// List returns the notes of all nodes that are alive, by node id, and removes those of
// nodes that ended without closing them. A directory that is not there holds none.
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
	slices.SortFunc(out, func(a, b Note) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.PID, b.PID)) })
	return out, nil
}

// read returns a note if its node is alive. A name is never used twice, so a note whose
// lock is free can be removed by its name.
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

// Hold is the right to a shared directory.
type Hold struct{ f *os.File }

// holdSuffix makes the name of the lock file, which lies beside the directory: what lies in
// it belongs to its holder. It is never removed: a lock on a removed file would keep nobody
// out.
const holdSuffix = ".holder"

// TryHold takes the right to dir, or reports that another process has it. The directory
// above dir is made if need be.
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
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, trouble(err, "the data directory cannot be locked: "+dir)
}

// Await takes the right to dir as soon as it is free; it looks every pause. The error is
// that of ctx, or what TryHold says.
func Await(ctx context.Context, dir string, pause time.Duration) (*Hold, error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		h, ok, err := TryHold(dir)
		if ok || err != nil {
			return h, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Release gives the right back. It is called once.
func (h *Hold) Release() error { return h.f.Close() }

// Secret returns the path of a file in dir with text that only this user can read: the one
// that is there, or one with what fresh returns. Of several processes that come first one
// makes it.
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

// Private makes dir, or makes sure that it belongs to this user alone: in a directory that
// others can write to, another user may have come first.
func Private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return trouble(err, "the directory for what nodes of this host share cannot be made: "+dir)
	}
	return onlyMine(dir)
}

// onlyMine refuses what belongs to somebody else, or can be read or written by others.
func onlyMine(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return trouble(err, "it cannot be read: "+path)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode()&os.ModeSymlink != 0 || info.Mode().Perm()&0o077 != 0 || !ok || int64(owner.Uid) != int64(os.Geteuid()) {
		return &fault.Error{Code: fault.Denied, Op: "neighbour", Key: path, Msg: fmt.Sprintf("%s is not this user's alone (mode %04o)", path, info.Mode().Perm()),
			Hint: "make it yours and close it to others (chmod go=), or set XDG_RUNTIME_DIR and --data-dir to places of your own"}
	}
	return nil
}

func trouble(err error, msg string) error {
	e := &fault.Error{Code: fault.Internal, Op: "neighbour", Msg: msg, Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Code, e.Hint = fault.Denied, "this user may not write there: mend that, or choose another --data-dir and XDG_RUNTIME_DIR"
	case errors.Is(err, syscall.ENOSPC):
		e.Code, e.Hint = fault.Unavailable, "the disk is full: free some space"
	}
	return e
}
