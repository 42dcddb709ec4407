package group

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/raftlog"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/durable"
)

// simDisk is the disk of one simulated server: files, terms and votes, and a log, all in memory. It keeps
// unsynced writes apart, so that a crash can keep any prefix of them, or none. After crash, use the simDisk
// that it returns.
type simDisk struct {
	files *vfs.MemFS
	full  atomic.Bool // the next write to the log fails, which ends the server
	lies  string      // what this disk forgets in a crash although it was synced: "log", "votes"; empty = nothing

	mu    sync.Mutex
	kept  simRecords          // on the medium
	noted []func(*simRecords) // later writes that are not synced, in order
	seen  simRecords          // kept with the writes in noted; reads return this
}

// simRecords is what the disk holds besides files.
type simRecords struct {
	votes  map[string][]byte
	log    []*raft.Log // without gaps
	stable bool        // the file of terms and votes was made
	engine bool
}

func newSimDisk(lies string) *simDisk {
	d := &simDisk{files: vfs.NewCrashableMem(), lies: lies, kept: simRecords{votes: map[string][]byte{}},
		seen: simRecords{votes: map[string][]byte{}}}
	// The data directory exists before the groups.
	if err := errors.Join(d.MkdirAll("/sim"), d.SyncDir("/"), d.SyncDir("/sim")); err != nil {
		panic(err)
	}
	return d
}

func (r simRecords) clone() simRecords {
	r.votes, r.log = maps.Clone(r.votes), slices.Clone(r.log)
	return r
}

// crash returns the disk as a power loss at this moment leaves it.
func (d *simDisk) crash(rnd *rand.Rand) *simDisk {
	percent := []int{0, 50, 100}[rnd.IntN(3)]
	next := newSimDisk(d.lies)
	next.files = d.files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rnd})
	d.mu.Lock()
	defer d.mu.Unlock()
	next.kept = d.kept.clone()
	for _, op := range d.noted[:rnd.IntN(len(d.noted)+1)] {
		op(&next.kept)
	}
	switch d.lies {
	case "log":
		next.kept.log = next.kept.log[:max(0, len(next.kept.log)-30)]
	case "votes":
		delete(next.kept.votes, string(raftlog.KeyVote))
	}
	next.seen = next.kept.clone()
	return next
}

// note applies a write that a crash may undo until sync is called.
func (d *simDisk) note(op func(*simRecords)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op(&d.seen)
	d.noted = append(d.noted, op)
}

// sync makes all noted writes permanent.
func (d *simDisk) sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noted, d.kept = nil, d.seen.clone()
}

func (d *simDisk) look(f func(*simRecords)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.seen)
}

// The files.

func (d *simDisk) Database() vfs.FS { return d.files }

func (d *simDisk) Read(path string) ([]byte, error) {
	f, err := d.files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if len(b) < 2 {
		return nil, durable.ErrDamaged
	}
	end := slices.Index(b, '\n')
	if end < 0 || string(b[end+1:]) != durable.Sum(b[:end])+"\n" {
		return nil, durable.ErrDamaged
	}
	return b[:end], nil
}

func (d *simDisk) Write(path string, body []byte, step func(string)) error {
	f, err := d.files.Create(path+durable.Suffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(string(body) + "\n" + durable.Sum(body) + "\n"))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	step("written")
	if err := d.files.Rename(path+durable.Suffix, path); err != nil {
		return err
	}
	step("renamed")
	return d.SyncDir(filepath.Dir(path))
}

func (d *simDisk) Open(path string) (io.ReadCloser, error) { return d.files.Open(path) }

func (d *simDisk) Create(path string) (raftlog.SyncedFile, error) {
	if _, err := d.files.Stat(path); err == nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	f, err := d.files.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return simFile{f}, nil
}

// simFile writes a copy of its data. With the race detector, Pebble's in-memory files overwrite the caller's
// buffer on purpose, and two writers may share it.
type simFile struct{ vfs.File }

func (f simFile) Write(p []byte) (int, error) { return f.File.Write(slices.Clone(p)) }

func (d *simDisk) List(dir string) ([]fs.FileInfo, error) {
	names, err := d.files.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	infos := make([]fs.FileInfo, len(names))
	for i, name := range names {
		info, err := d.files.Stat(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		infos[i] = simInfo{info, name}
	}
	return infos, nil
}

// simInfo has the name by which a directory knows a file. A hard link has its own name.
type simInfo struct {
	fs.FileInfo
	name string
}

func (i simInfo) Name() string { return i.name }

func (d *simDisk) Exists(path string) bool {
	switch filepath.Base(path) {
	case raftlog.StableName, raftlog.BoltName:
		var made bool
		d.look(func(r *simRecords) {
			made = r.stable && filepath.Base(path) == raftlog.StableName || r.engine &&
				filepath.Base(path) == raftlog.BoltName
		})
		return made
	}
	_, err := d.files.Stat(path)
	return err == nil
}

func (d *simDisk) Holds(path string) (bool, error) { return d.Exists(path), nil }

func (d *simDisk) OtherLog(string, raftlog.Engine) error { return nil }

func (d *simDisk) Mkdir(dir string) error {
	if _, err := d.files.Stat(dir); err == nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: fs.ErrExist}
	}
	return d.files.MkdirAll(dir, 0o700)
}

func (d *simDisk) MkdirAll(dir string) error { return d.files.MkdirAll(dir, 0o700) }

func (d *simDisk) RemoveAll(path string) error { return d.files.RemoveAll(path) }

func (d *simDisk) SyncDir(dir string) error {
	f, err := d.files.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Terms and votes. The step after a vote syncs the vote (see sim.step). A term alone is synced at once.

func (d *simDisk) Stable(string) (raftlog.StableStore, error) {
	d.note(func(r *simRecords) { r.stable = true })
	d.sync()
	return simStable{d}, nil
}

type simStable struct{ d *simDisk }

func (s simStable) Set(key, val []byte) error {
	k, v := string(key), slices.Clone(val)
	s.d.note(func(r *simRecords) { r.votes[k] = v })
	if k != string(raftlog.KeyVote) {
		s.d.sync()
	}
	return nil
}

func (s simStable) Get(key []byte) (val []byte, err error) {
	err = raftboltdb.ErrKeyNotFound
	s.d.look(func(r *simRecords) {
		if v, ok := r.votes[string(key)]; ok {
			val, err = slices.Clone(v), nil
		}
	})
	return val, err
}

func (s simStable) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

func (s simStable) GetUint64(key []byte) (uint64, error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

func (s simStable) Close() error { return nil }

// The log. The step after an append or a deletion syncs the log (see sim.step).

func (d *simDisk) Log(string, raftlog.Engine, *slog.Logger) (raftlog.Backend, error) {
	d.note(func(r *simRecords) { r.engine = true })
	d.sync()
	return simLog{d}, nil
}

type simLog struct{ d *simDisk }

func (s simLog) FirstIndex() (first uint64, err error) {
	s.d.look(func(r *simRecords) {
		if len(r.log) > 0 {
			first = r.log[0].Index
		}
	})
	return first, nil
}

func (s simLog) LastIndex() (last uint64, err error) {
	s.d.look(func(r *simRecords) {
		if n := len(r.log); n > 0 {
			last = r.log[n-1].Index
		}
	})
	return last, nil
}

func (s simLog) GetLog(index uint64, l *raft.Log) (err error) {
	err = raft.ErrLogNotFound
	s.d.look(func(r *simRecords) {
		if n := len(r.log); n > 0 && r.log[0].Index <= index && index <= r.log[n-1].Index {
			*l, err = *r.log[index-r.log[0].Index], nil
		}
	})
	return err
}

func (s simLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs notes each entry separately, because a crash may tear a batch.
func (s simLog) StoreLogs(entries []*raft.Log) error {
	for _, l := range entries {
		c := copyEntry(l)
		last, _ := s.LastIndex()
		if last > 0 && c.Index != last+1 {
			return errors.New("an append leaves a gap in the log, or covers what it holds")
		}
		s.d.note(func(r *simRecords) { r.log = append(r.log, c) })
	}
	return nil
}

func copyEntry(l *raft.Log) *raft.Log {
	c := *l
	c.Data, c.Extensions = slices.Clone(l.Data), slices.Clone(l.Extensions)
	return &c
}

func (s simLog) DeleteRange(lo, hi uint64) error {
	s.d.note(func(r *simRecords) {
		r.log = slices.DeleteFunc(slices.Clone(r.log), func(l *raft.Log) bool { return lo <= l.Index && l.Index <= hi })
	})
	return nil
}

func (s simLog) Close() error { return nil }
