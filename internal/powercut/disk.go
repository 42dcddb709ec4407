package powercut

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Disk is a model of a directory on a disk. It distinguishes changes that are synced from changes that a power cut may
// undo. It is not safe for concurrent use.
type Disk struct {
	// Lies reports whether the disk ignores a sync of the file with this path, or of the directory if dir is true. If
	// Lies is nil, the disk ignores none.
	Lies func(path string, dir bool) bool

	root  *node
	open  map[uint64]*node
	syncs map[uint64]int // by number of a sync that has begun: the number of changes to sync
}

// node is a file or a directory.
type node struct {
	path    string // the path in the last record that named the node
	dir     bool
	data    []byte           // content of a file that is synced
	names   map[string]*node // names in a directory that are synced
	live    map[string]*node // names in a directory, as programs see them
	changes []change         // changes that are not synced
	synced  int              // number of earlier changes that are synced
}

// change is one change of a file or directory.
type change struct {
	op   byte
	at   int64 // offset or size
	data []byte
	// For a directory: the names that change, with their new files or directories. nil = the name is removed.
	names map[string]*node
}

// NewDisk returns a disk with the files of the directory dir, all synced. If dir does not exist, the disk is empty.
func NewDisk(dir string) (*Disk, error) {
	d := &Disk{root: newDir(""), open: map[uint64]*node{}, syncs: map[uint64]int{}}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		switch {
		case err != nil:
			return err
		case rel == ".":
			return nil
		case !e.IsDir() && !e.Type().IsRegular():
			return nil // a socket
		}
		n := newDir(rel)
		if !e.IsDir() {
			n = &node{path: rel}
			if n.data, err = os.ReadFile(name); err != nil {
				return err
			}
		}
		up, base, err := d.parent(rel)
		if err != nil {
			return err
		}
		up.names[base], up.live[base] = n, n
		return nil
	})
	if os.IsNotExist(err) {
		err = nil
	}
	return d, err
}

func newDir(name string) *node {
	return &node{path: name, dir: true, names: map[string]*node{}, live: map[string]*node{}}
}

// find returns a file or directory as programs see it; nil if there is none.
func (d *Disk) find(name string) *node {
	n := d.root
	if name == "." || name == "" {
		return n
	}
	for part := range strings.SplitSeq(name, "/") {
		if n == nil || !n.dir {
			return nil
		}
		n = n.live[part]
	}
	return n
}

func (d *Disk) parent(name string) (*node, string, error) {
	up := d.find(path.Dir(name))
	if up == nil || !up.dir {
		return nil, "", fmt.Errorf("powercut: %s is in no known directory", name)
	}
	return up, path.Base(name), nil
}

// Apply applies one record of a trace. The records of a trace must be applied in their order.
func (d *Disk) Apply(r *Record) error {
	first := string(r.first)
	switch r.op {
	case opNote:
		return nil
	case opOpen:
		return d.opened(first, r)
	case opMkdir:
		return d.name(first, newDir(first))
	case opUnlink:
		return d.name(first, nil)
	case opLink, opRename:
		return d.renamed(first, string(r.second), r.op == opLink)
	}
	n := d.open[r.a]
	if n == nil {
		return fmt.Errorf("powercut: operation %d of an unknown file", r.op)
	}
	switch r.op {
	case opSyncBegins:
		d.syncs[r.b] = n.synced + len(n.changes)
	case opSynced:
		if d.Lies == nil || !d.Lies(n.path, n.dir) {
			n.sync(d.syncs[r.b])
		}
		delete(d.syncs, r.b)
	default:
		n.changes = append(n.changes, change{op: r.op, at: int64(r.b), data: r.first}) //nolint:gosec // a size
	}
	return nil
}

// opened applies the record r of the opening of a file. It creates the file if the disk does not have it. It empties
// the file if the record has the flag truncates. Later records identify the open file by the number r.a.
func (d *Disk) opened(name string, r *Record) error {
	n := d.find(name)
	if n == nil {
		n = &node{}
		if err := d.name(name, n); err != nil {
			return err
		}
	}
	n.path = name
	if r.b&truncates != 0 {
		n.changes = append(n.changes, change{op: opTruncate})
	}
	d.open[r.a] = n
	return nil
}

// name makes a name refer to the file or directory n. If n is nil, it removes the name.
func (d *Disk) name(name string, n *node) error {
	up, base, err := d.parent(name)
	if err != nil {
		return err
	}
	up.note(map[string]*node{base: n})
	return nil
}

func (d *Disk) renamed(from, to string, link bool) error {
	n := d.find(from)
	up, base, err := d.parent(to)
	switch {
	case err != nil:
		return err
	case n == nil:
		return fmt.Errorf("powercut: %s gets a name, but is not known", from)
	case link:
		up.note(map[string]*node{base: n})
	case path.Dir(from) != path.Dir(to):
		return fmt.Errorf("powercut: %s is moved to another directory, %s, which the model does not know", from, to)
	default:
		up.note(map[string]*node{path.Base(from): nil, base: n})
	}
	n.path = to
	return nil
}

// note changes the given names in the directory n, as one change that is not synced yet. A nil element of names removes
// the name.
func (n *node) note(names map[string]*node) {
	n.changes = append(n.changes, change{names: names})
	setNames(n.live, names)
}

func setNames(in, names map[string]*node) {
	for name, n := range names {
		if n == nil {
			delete(in, name)
		} else {
			in[name] = n
		}
	}
}

// sync records that the first upTo changes of the node are synced. upTo includes the changes that were synced earlier.
func (n *node) sync(upTo int) {
	count := upTo - n.synced
	if count <= 0 {
		return // a later sync was faster
	}
	for _, c := range n.changes[:count] {
		if n.dir {
			setNames(n.names, c.names)
		} else {
			n.data = c.do(n.data)
		}
	}
	n.synced, n.changes = upTo, n.changes[count:]
}

// do applies a change to the content of a file.
func (c *change) do(data []byte) []byte {
	switch c.op {
	case opTruncate:
		if int64(len(data)) > c.at {
			return data[:c.at]
		}
		return grown(data, c.at)
	case opExtend:
		return grown(data, c.at)
	default:
		data = grown(data, c.at+int64(len(c.data)))
		copy(data[c.at:], c.data)
		return data
	}
}

func grown(data []byte, size int64) []byte {
	if more := size - int64(len(data)); more > 0 {
		old := len(data)
		data = slices.Grow(data, int(more))[:size]
		clear(data[old:])
	}
	return data
}

// Keep selects the unsynced changes that survive a power cut.
type Keep uint8

// The selections of unsynced changes.
const (
	KeepNone   Keep = iota // nothing is kept
	KeepPrefix             // a random number of the oldest changes of each file and directory; the last may be torn
	KeepSome               // random blocks of each write; of each directory, a random number of the oldest changes
	KeepAll                // everything is kept, as after kill -9
	Keeps                  // number of the selections above
)

// block is the number of bytes that a disk writes atomically.
const block = 4096

// Image writes the files that the disk would contain after a power cut at this moment. It creates the directory target,
// which must not exist yet. keep and rnd select which unsynced changes survive.
func (d *Disk) Image(target string, keep Keep, rnd *rand.Rand) error {
	return d.root.image(target, keep, rnd)
}

func (n *node) image(to string, keep Keep, rnd *rand.Rand) error {
	kept := n.changes[:n.prefix(keep, rnd)]
	if !n.dir {
		data := slices.Clone(n.data)
		for i := range kept {
			c := kept[i]
			switch {
			case keep == KeepSome && c.op == opWrite:
				for at := 0; at < len(c.data); at += block {
					if rnd.IntN(2) == 0 {
						piece := change{op: opWrite, at: c.at + int64(at)}
						piece.data = c.data[at:min(at+block, len(c.data))]
						data = piece.do(data)
					}
				}
				continue
			case keep == KeepSome && rnd.IntN(2) == 0:
				continue
			case keep == KeepPrefix && i == len(kept)-1 && c.op == opWrite && rnd.IntN(2) == 0:
				c.data = c.data[:rnd.IntN(len(c.data)+1)]
			}
			data = c.do(data)
		}
		return os.WriteFile(to, data, 0o600)
	}
	names := maps.Clone(n.names)
	for _, c := range kept {
		setNames(names, c.names)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := names[name].image(filepath.Join(to, name), keep, rnd); err != nil {
			return err
		}
	}
	return nil
}

// prefix returns how many of the oldest unsynced changes may survive.
func (n *node) prefix(keep Keep, rnd *rand.Rand) int {
	switch {
	case keep == KeepNone:
		return 0
	case keep == KeepAll, keep == KeepSome && !n.dir:
		return len(n.changes)
	default:
		return rnd.IntN(len(n.changes) + 1)
	}
}

// Differs returns nil if dir has the same files as the disk, including unsynced changes. Otherwise its error describes
// the first difference. A test can use Differs to check that a trace is complete.
func (d *Disk) Differs(dir string) error {
	seen := map[string]bool{}
	var walk func(n *node, name string) error
	walk = func(n *node, name string) error {
		for _, base := range slices.Sorted(maps.Keys(n.live)) {
			child, rel := n.live[base], filepath.Join(name, base)
			seen[rel] = true
			if child.dir {
				if err := walk(child, rel); err != nil {
					return err
				}
				continue
			}
			want := slices.Clone(child.data)
			for i := range child.changes {
				want = child.changes[i].do(want)
			}
			have, err := os.ReadFile(filepath.Join(dir, rel))
			if err != nil {
				return err
			}
			if !bytes.Equal(have, want) {
				return fmt.Errorf("powercut: %s has %d bytes, the trace %d, or others", rel, len(have), len(want))
			}
		}
		return nil
	}
	if err := walk(d.root, ""); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, name)
		if err == nil && e.Type().IsRegular() && !seen[rel] {
			err = fmt.Errorf("powercut: %s is not in the trace", rel)
		}
		return err
	})
}
