package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// mendWAL finishes, before raft-wal is opened, what a crash or a close has left undone at
// the end of its newest segment; raft-wal v0.4.2 does not, and then refuses every append
// for ever. It reports what it did, "" for nothing.
//
//  1. A full segment is sealed with its last append, and its successor is noted in the
//     metadata a moment later. In between the log has nowhere to append to: the successor
//     is noted here. raft-wal makes its file when it finds none.
//  2. A torn last append may have left its index, which looks like a seal, or other bytes
//     behind the last whole append: they are cleared, for nothing in them was acknowledged.
//
// Nobody may have the log open.
func mendWAL(dir string) (done string, err error) {
	if !exists(filepath.Join(dir, metadb.FileName)) {
		return "", nil // to be made
	}
	meta := &metadb.BoltMetaDB{}
	state, err := meta.Load(dir)
	defer func() { err = errors.Join(err, meta.Close()) }()
	if err != nil || len(state.Segments) == 0 {
		return "", err
	}
	tail := &state.Segments[len(state.Segments)-1]
	if !tail.SealTime.IsZero() {
		return "", nil
	}
	f, err := os.OpenFile(filepath.Join(dir, segment.FileName(*tail)), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // raft-wal makes it
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := scanSegment(f)
	switch {
	case err != nil:
		return "", err
	case end.index > 0:
		return fmt.Sprintf("segment %s was full", segment.FileName(*tail)), succeed(meta, state, tail, end)
	}
	torn, err := clearAfter(f, end.offset)
	if err != nil || !torn {
		return "", err
	}
	return fmt.Sprintf("an append to segment %s had not finished", segment.FileName(*tail)), nil
}

// succeed notes that tail is sealed, and the segment after it, as raft-wal would have done.
func succeed(meta types.MetaStore, state types.PersistentState, tail *types.SegmentInfo, end segmentEnd) error {
	now := time.Now()
	tail.SealTime, tail.MaxIndex, tail.IndexStart = now, tail.BaseIndex+end.entries-1, uint64(end.index)
	next := tail.MaxIndex + 1
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: next, MinIndex: next, SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: now,
	})
	state.NextSegmentID++
	return meta.CommitState(state)
}

// Layout of raft-wal's segments: a header, then frames, each of a type, a length (or, for
// a commit, the CRC-32C of all since the commit before) and content padded to 8 bytes.
const (
	walHeaderSize = 32
	walFrameSize  = 8
)

// segmentEnd is where the last whole append of a segment ends.
type segmentEnd struct {
	offset  int64  // first byte after it
	entries uint64 // in the segment
	index   int64  // offset of the index if that append sealed the segment, else 0
}

// scanSegment finds the last append whose checksum is right. Those before it were synced
// before it was begun, so that only the last two need a look.
func scanSegment(f io.ReaderAt) (segmentEnd, error) {
	var last, before, now segmentEnd // now is what has been read since the last commit
	var sum uint32
	now.offset = walHeaderSize
	for {
		var h [walFrameSize]byte
		if _, err := f.ReadAt(h[:], now.offset); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return segmentEnd{}, err
		}
		size := binary.LittleEndian.Uint32(h[4:])
		switch h[0] {
		case segment.FrameEntry:
			now.entries++
		case segment.FrameIndex:
			now.index = now.offset + walFrameSize
		case segment.FrameCommit:
			before, last, sum, size = last, now, size, 0
			last.offset += walFrameSize
		default:
			return lastWhole(f, before, last, sum)
		}
		now.offset += walFrameSize + (int64(size)+walFrameSize-1)/walFrameSize*walFrameSize
	}
	return lastWhole(f, before, last, sum)
}

// lastWhole is last if its content has the checksum sum, else the append before it.
func lastWhole(f io.ReaderAt, before, last segmentEnd, sum uint32) (segmentEnd, error) {
	if last.offset == 0 {
		return last, nil // no append at all
	}
	crc := crc32.New(castagnoli)
	if _, err := io.Copy(crc, io.NewSectionReader(f, before.offset, last.offset-walFrameSize-before.offset)); err != nil {
		return segmentEnd{}, err
	}
	if crc.Sum32() == sum {
		return last, nil
	}
	return before, nil
}

// clearAfter makes everything after offset zero, and reports whether it was not.
func clearAfter(f *os.File, offset int64) (bool, error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	rest := io.NewSectionReader(f, offset, max(info.Size()-offset, 0))
	b, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := rest.Read(b)
		if !bytes.Equal(b[:n], zeros[:n]) {
			return true, errors.Join(f.Truncate(offset), f.Truncate(info.Size()), f.Sync())
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}
