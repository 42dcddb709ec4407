package raftlog

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

	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/quorate/quorate/internal/fault"
)

// repairWAL repairs the end of the newest segment after an append was interrupted, for example by a crash. Without the
// repair, raft-wal v0.4.2 would refuse every append. The log must not be open. repairWAL returns a description of the
// repair, or "" if there was nothing to repair. There are two cases:
//
//  1. The newest segment is full and sealed, but the metadata does not name the next segment yet. repairWAL adds the
//     next segment to the metadata, and raft-wal creates its file.
//  2. The last append is incomplete, so there are bytes after the last complete one. repairWAL overwrites these bytes
//     with zeros. They contain no acknowledged entry. If the bytes stayed and contained the index of the segment,
//     raft-wal would consider the segment sealed.
func repairWAL(dir string) (done string, err error) {
	list := filepath.Join(dir, metadb.FileName)
	if !exists(list) {
		return "", nil // the log does not exist yet
	}
	meta := &metadb.BoltMetaDB{}
	state, err := meta.Load(dir)
	defer func() { err = errors.Join(err, meta.Close()) }()
	switch {
	case errors.Is(err, types.ErrCorrupt):
		return "", CorruptFile(list, fault.Text(err))
	case err != nil || len(state.Segments) == 0:
		return "", err
	}
	if why := listProblem(state.Segments); why != "" {
		return "", CorruptFile(list, why)
	}
	tail := &state.Segments[len(state.Segments)-1]
	if !tail.SealTime.IsZero() {
		return "", nil
	}
	f, err := os.OpenFile(filepath.Join(dir, segment.FileName(*tail)), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // raft-wal creates it
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := scanSegment(f)
	if err == nil {
		err = cutOff(f, *tail, end)
	}
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

// listProblem checks the list of segments in the metadata of raft-wal, which has no checksum. It returns a description
// of the damage, or "" if the list is valid. Unlike the errors of raft-wal, the description names the segment.
func listProblem(segments []types.SegmentInfo) string {
	for i := range segments {
		s := &segments[i]
		switch {
		case s.Codec != wal.CodecBinaryV1:
			return fmt.Sprintf("segment %s has the unknown codec %d", segment.FileName(*s), s.Codec)
		case s.BaseIndex == 0 || s.MinIndex < s.BaseIndex:
			return fmt.Sprintf("segment %s begins at entry %d and is used from entry %d", segment.FileName(*s),
				s.BaseIndex, s.MinIndex)
		case s.SealTime.IsZero() && i < len(segments)-1:
			return fmt.Sprintf("segment %s is not sealed and is not the last one", segment.FileName(*s))
		}
	}
	return ""
}

// cutOff returns an error if the file of a segment was truncated. A segment file gets its full length before the first
// append, so an interrupted append never leaves a shorter file. A power cut while the file is created can leave a
// shorter file without entries, which cutOff extends to its full length.
func cutOff(f *os.File, s types.SegmentInfo, end segmentEnd) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size := info.Size(); size > walHeaderSize && size < int64(s.SizeLimit) && size < end.next+walFrameSize {
		return CorruptFile(f.Name(), fmt.Sprintf("it is truncated: it has %d bytes, and its entries do not end there",
			size))
	}
	if info.Size() >= int64(s.SizeLimit) || end.entries > 0 {
		return nil
	}
	return errors.Join(f.Truncate(int64(s.SizeLimit)), f.Sync())
}

// succeed records in the metadata that the newest segment (tail) is sealed, and adds the next segment. It writes what
// raft-wal would have written if it had not been interrupted.
func succeed(meta types.MetaStore, state types.PersistentState, tail *types.SegmentInfo, end segmentEnd) error {
	now := time.Now()
	tail.SealTime, tail.MaxIndex, tail.IndexStart = now, tail.BaseIndex+end.entries-1, uint64(end.index)
	next := tail.MaxIndex + 1
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: next, MinIndex: next, SizeLimit: tail.SizeLimit, Codec: tail.Codec,
		CreateTime: now,
	})
	state.NextSegmentID++
	return meta.CommitState(state)
}

// The layout of raft-wal's segments is a header, followed by frames. A frame has a type, a length and content padded
// to 8 bytes. Instead of a length, a commit frame has the CRC-32C of everything since the previous commit.
const (
	walHeaderSize = 32
	walFrameSize  = 8
)

// segmentEnd is the position after the last complete append of a segment.
type segmentEnd struct {
	offset  int64  // offset after the append
	entries uint64 // number of entries in the segment
	index   int64  // offset of the index if that append sealed the segment, otherwise 0
	next    int64  // offset at which the scan found no further frame
}

// scanSegment finds the last complete append of a segment. An append is complete if its checksum is correct.
// scanSegment verifies only the checksum of the last append. This is enough, because each append is synced before the
// next one begins.
func scanSegment(f io.ReaderAt) (segmentEnd, error) {
	var last, before, now segmentEnd // now counts what has been read since the last commit
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
			return lastWhole(f, before, last, sum, now.offset)
		}
		now.offset += walFrameSize + (int64(size)+walFrameSize-1)/walFrameSize*walFrameSize
	}
	return lastWhole(f, before, last, sum, now.offset)
}

// lastWhole returns the end of the last complete append in a segment. The newest append begins at previous and ends at
// last, and sum is its stored checksum. If the content matches sum, lastWhole returns last. Otherwise the append is
// incomplete, and lastWhole returns previous. The parameter next is the value for the field next of the result.
func lastWhole(f io.ReaderAt, previous, last segmentEnd, sum uint32, next int64) (segmentEnd, error) {
	previous.next, last.next = next, next
	if last.offset == 0 {
		return last, nil // no append at all
	}
	crc := crc32.New(castagnoli)
	if _, err := io.Copy(crc, io.NewSectionReader(f, previous.offset,
		last.offset-walFrameSize-previous.offset)); err != nil {
		return segmentEnd{}, err
	}
	if crc.Sum32() == sum {
		return last, nil
	}
	return previous, nil
}

// segmentFile is the part of os.File that clearAfter uses.
type segmentFile interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// clearAfter overwrites everything from the given offset on with zeros, and reports whether any byte has changed. It
// does not shorten the file, because after a crash a shorter file would count as truncated (see cutOff).
func clearAfter(f segmentFile, offset int64) (changed bool, err error) {
	b, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := f.ReadAt(b, offset)
		if !bytes.Equal(b[:n], zeros[:n]) {
			changed = true
			if _, err := f.WriteAt(zeros[:n], offset); err != nil {
				return changed, err
			}
		}
		offset += int64(n)
		switch {
		case errors.Is(err, io.EOF) && changed:
			return true, f.Sync()
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return changed, err
		}
	}
}
