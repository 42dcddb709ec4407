package raftlog

import (
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// segmentFiles returns a SegmentFiler that syncs each new segment file when it is created. raft-wal itself syncs a
// new file only together with its first append. A power cut during that append could then leave a file of any
// length, which looks like a truncated segment.
func segmentFiles(dir string) types.SegmentFiler { return segment.NewFiler(dir, syncedFiles{fs.New()}) }

// syncedFiles is a types.VFS that syncs new files.
type syncedFiles struct{ types.VFS }

// Create implements types.VFS.
func (s syncedFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := s.VFS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		_ = f.Close() // the error of the sync counts
		return nil, err
	}
	return f, nil
}
