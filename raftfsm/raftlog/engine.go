package raftlog

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/quorate/quorate/internal/fault"
)

func boltOptions() *bbolt.Options {
	return &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// refuseOtherLog returns an error if dir has a log of the other engine.
func refuseOtherLog(dir string, e Engine) error {
	other := BoltDB
	if e == BoltDB {
		other = WAL
	}
	path := filepath.Join(dir, other.FileName())
	if !exists(path) {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: "group.Open", Key: path,
		Msg: fmt.Sprintf("the log in %s was made with --log-store %s", dir, other),
		Hint: fmt.Sprintf("start with --log-store %s; to change it, let the node join again with an empty data "+
			"directory", other)}
}

// FileOf returns the path of the file that contains the log entry with the given index. dir is the directory of the
// group. For index 0, the result is the path of the log itself.
func FileOf(dir string, e Engine, index uint64) string {
	path := filepath.Join(dir, e.FileName())
	if e == BoltDB || index == 0 {
		return path
	}
	segments, err := segmentsIn(path)
	if err != nil {
		return path
	}
	for _, segment := range segments {
		var first uint64
		if _, err := fmt.Sscanf(filepath.Base(segment), "%d-", &first); err != nil || first > index {
			break
		}
		path = segment
	}
	return path
}

// openEngine opens the log in dir with the given engine. It creates the log if there is none.
func openEngine(dir string, e Engine, logger *slog.Logger) (Backend, error) {
	mine := filepath.Join(dir, e.FileName())
	if e == BoltDB {
		s, err := raftboltdb.New(raftboltdb.Options{Path: mine, BoltOptions: boltOptions()})
		if err != nil {
			return nil, DiskError(err, mine)
		}
		return s, nil
	}
	if err := os.MkdirAll(mine, 0o700); err != nil {
		return nil, DiskError(err, mine)
	}
	s, err := openWAL(mine, logger)
	if err != nil {
		if _, ours := fault.As(err); ours {
			return nil, err
		}
		return nil, DiskError(err, mine)
	}
	return s, nil
}
