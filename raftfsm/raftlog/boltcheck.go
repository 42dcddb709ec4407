package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// bbolt trusts the pages of its file. A damaged page leads to a panic, possibly on a goroutine of bbolt where
// no caller can recover it. So a file is checked here before bbolt opens it: both headers, the length, and
// every page reachable from the root. bbolt reads all these pages as well, to find the free ones, so the check
// costs about as much as the open.
//
// The check ignores the meaning of keys and values, and bbolt has no checksum over them. Log entries have their
// own checksum (see Seal). Terms and votes are compared with the floor.

// The layout of a bbolt file.
const (
	boltPageHeader  = 16 // id (8), flags (2), count (2), overflow (4)
	boltElement     = 16 // header of an element in a branch page or a leaf page
	boltMetaSize    = 64
	boltBranch      = 0x01
	boltLeaf        = 0x02
	boltFreelist    = 0x10
	boltBucketLeaf  = 0x01               // flag of a leaf element: its value is a bucket
	boltBucketSize  = 16                 // root (8), sequence (8)
	boltNoFreelist  = 0xffffffffffffffff // the list of free pages is not stored
	boltMaxPageSize = 1 << 16
)

// checkBolt checks the bbolt file at the given path and returns an error with a hint if the file is damaged. The result
// hasData is false if the file is absent, empty, or all zeros. bbolt leaves a file of zeros if it is interrupted while
// it creates the file. No other process may write to the file during the check.
func checkBolt(path string) (hasData bool, err error) {
	if err := CheckBoltFormat(path); err != nil {
		return false, err // written by a newer version
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, DiskError(err, path)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, DiskError(err, path)
	}
	if !info.Mode().IsRegular() {
		return false, CorruptFile(path, "it is not a file")
	}
	if blank, err := allZeros(f, info.Size()); err != nil || blank {
		return false, diskErrorOrNil(err, path)
	}
	c := boltCheck{file: f, size: info.Size()}
	why, err := c.run()
	switch {
	case err != nil:
		return false, DiskError(err, path)
	case why != "":
		return false, CorruptFile(path, why)
	}
	return true, nil
}

// allZeros reports whether the file contains only zeros. It stops at the first other byte.
func allZeros(f io.ReaderAt, size int64) (bool, error) {
	r, b := io.NewSectionReader(f, 0, size), make([]byte, 64<<10)
	for {
		n, err := r.Read(b)
		if len(bytes.Trim(b[:n], "\x00")) > 0 {
			return false, nil
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// boltCheck is the state of the check of one file.
type boltCheck struct {
	file io.ReaderAt
	size int64
	page int64  // size of a page
	end  uint64 // first unused page id
	seen map[uint64]bool
	why  string // the first damage found; empty = none so far
}

// boltMeta is one of the two headers of a file.
type boltMeta struct {
	page                      int64
	root, freelist, end, txid uint64
}

// run checks the file. It returns a description of the damage, or "" if the file is intact. It returns an error only if
// the file cannot be read.
func (c *boltCheck) run() (why string, err error) {
	m, err := c.meta()
	if err != nil {
		return "", err
	}
	if m == nil {
		return "neither of its two headers is valid", nil
	}
	c.page, c.end, c.seen = m.page, m.end, map[uint64]bool{}
	if need := int64(m.end) * m.page; m.end < 2 || m.end > 1<<40 || c.size < need { //nolint:gosec // bounded
		return fmt.Sprintf("it is truncated: it has %d bytes, its header names %d", c.size, need), nil
	}
	if m.freelist != boltNoFreelist {
		if err := c.free(m.freelist); err != nil || c.why != "" {
			return c.why, err
		}
	}
	err = c.walk(m.root)
	return c.why, err
}

// meta returns the newest valid header of the file, or nil if no header is valid. A file has two headers, at the start
// of its first two pages. Only a header contains the page size, so meta looks for the second one at every offset where
// the second page can begin.
func (c *boltCheck) meta() (newest *boltMeta, err error) {
	for at := int64(0); at <= boltMaxPageSize; at = max(at*2, 1024) {
		b := make([]byte, boltPageHeader+boltMetaSize)
		if _, err := c.file.ReadAt(b, at); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if m := parseBoltMeta(b[boltPageHeader:]); m != nil && (at == 0 || at == m.page) &&
			(newest == nil || m.txid > newest.txid) {
			newest = m
		}
	}
	return newest, nil
}

func parseBoltMeta(b []byte) *boltMeta {
	sum := fnv.New64a()
	_, _ = sum.Write(b[:boltMetaSize-8])
	le := binary.LittleEndian
	m := &boltMeta{page: int64(le.Uint32(b[8:])), root: le.Uint64(b[16:]), freelist: le.Uint64(b[32:]),
		end: le.Uint64(b[40:]), txid: le.Uint64(b[48:])}
	if le.Uint32(b) != boltMagic || le.Uint32(b[4:]) != boltFormat || le.Uint64(b[56:]) != sum.Sum64() ||
		m.page < 1024 || m.page > boltMaxPageSize {
		return nil
	}
	return m
}

// bad records a description of damage, unless damage is already recorded.
func (c *boltCheck) bad(format string, args ...any) {
	if c.why == "" {
		c.why = fmt.Sprintf(format, args...)
	}
}

// read returns the page with the given id, including its overflow pages. If the page does not exist, is damaged, or was
// read before, it records the damage and returns nil.
func (c *boltCheck) read(id uint64) ([]byte, error) {
	if id < 2 || id >= c.end {
		c.bad("a page refers to page %d, which does not exist", id)
		return nil, nil
	}
	head := make([]byte, boltPageHeader)
	if _, err := c.file.ReadAt(head, int64(id)*c.page); err != nil { //nolint:gosec // within the file
		return nil, err
	}
	overflow := uint64(binary.LittleEndian.Uint32(head[12:]))
	switch own := binary.LittleEndian.Uint64(head); {
	case own != id:
		c.bad("page %d is damaged: it has the id of page %d", id, own)
		return nil, nil
	case overflow >= c.end-id:
		c.bad("page %d is damaged: its %d overflow pages exceed the file", id, overflow)
		return nil, nil
	}
	for i := id; i <= id+overflow; i++ {
		if c.seen[i] {
			c.bad("page %d is used twice", i)
			return nil, nil
		}
		c.seen[i] = true
	}
	b := make([]byte, int64(overflow+1)*c.page)  //nolint:gosec // within the file
	_, err := c.file.ReadAt(b, int64(id)*c.page) //nolint:gosec // within the file
	return b, err
}

// free checks the list of free pages.
func (c *boltCheck) free(id uint64) error {
	b, err := c.read(id)
	if err != nil || b == nil {
		return err
	}
	flags, count, list := binary.LittleEndian.Uint16(b[8:]), uint64(binary.LittleEndian.Uint16(b[10:])),
		b[boltPageHeader:]
	if count == 0xffff {
		count, list = binary.LittleEndian.Uint64(list), list[8:]
	}
	if flags != boltFreelist || count > uint64(len(list)/8) {
		c.bad("page %d, the list of free pages, is damaged", id)
		return nil
	}
	for i := range count {
		free := binary.LittleEndian.Uint64(list[i*8:])
		if free < 2 || free >= c.end || c.seen[free] {
			c.bad("the list of free pages names page %d, which is in use or none", free)
			return nil
		}
		c.seen[free] = true
	}
	return nil
}

// walk checks the tree with the given root page, and the trees nested in it.
func (c *boltCheck) walk(root uint64) error {
	for unvisited := []boltRef{{id: root}}; len(unvisited) > 0 && c.why == ""; {
		at := unvisited[len(unvisited)-1]
		unvisited = unvisited[:len(unvisited)-1]
		b, err := c.read(at.id)
		if err != nil || b == nil {
			return err
		}
		unvisited = append(unvisited, c.elements(at, b)...)
	}
	return nil
}

// boltRef refers to a page whose keys must be in a range.
type boltRef struct {
	id       uint64
	from, to []byte // from <= key < to; nil = no bound
}

// elements checks the elements of a page. It returns references to the pages to which the elements point. b is the
// content of the page, or of a small bucket in a value of the page.
func (c *boltCheck) elements(ref boltRef, b []byte) (refers []boltRef) {
	le, id := binary.LittleEndian, ref.id
	flags, count := le.Uint16(b[8:]), int(le.Uint16(b[10:]))
	branch := flags == boltBranch
	if !branch && flags != boltLeaf || branch && count == 0 || boltPageHeader+count*boltElement > len(b) {
		c.bad("page %d is damaged: it has kind %#x and %d elements", id, flags, count)
		return nil
	}
	var last []byte
	for i := range count {
		at := boltPageHeader + i*boltElement
		e := b[at:]
		pos, size, value := uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		if branch {
			pos, size, value = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])), 0
		}
		from := uint64(at) + pos //nolint:gosec // not negative
		if from+size+value > uint64(len(b)) || pos < boltElement {
			c.bad("page %d is damaged: element %d exceeds it", id, i)
			return nil
		}
		key := b[from : from+size]
		if i > 0 && bytes.Compare(last, key) >= 0 || i == 0 && bytes.Compare(key, ref.from) < 0 || ref.to != nil &&
			bytes.Compare(key, ref.to) >= 0 {
			c.bad("page %d is damaged: its keys are not in order", id)
			return nil
		}
		last = key
		switch {
		case branch:
			if i > 0 {
				refers[i-1].to = key
			}
			refers = append(refers, boltRef{id: le.Uint64(e[8:]), from: key, to: ref.to})
		case le.Uint32(e)&boltBucketLeaf != 0:
			refers = append(refers, c.bucket(id, b[from+size:from+size+value])...)
		}
	}
	return refers
}

// bucket checks a bucket that is stored in a value. id is the page of the value. The result refers to the pages that
// must be checked next: the root page of a large bucket, or the pages to which the elements of a small bucket point.
func (c *boltCheck) bucket(id uint64, value []byte) []boltRef {
	if len(value) < boltBucketSize {
		c.bad("page %d is damaged: a bucket is truncated", id)
		return nil
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return []boltRef{{id: root}}
	}
	if len(value) < boltBucketSize+boltPageHeader {
		c.bad("page %d is damaged: a bucket is truncated", id)
		return nil
	}
	return c.elements(boltRef{id: id}, value[boltBucketSize:])
}
