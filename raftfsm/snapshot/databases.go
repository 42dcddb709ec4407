package snapshot

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Sweep removes the databases and checkpoints that a crash has left behind. It also finds the highest number in the
// names of all databases and checkpoints, so that NewDir uses no name twice.
func (s *Store) Sweep() error {
	entries, err := s.volume.List(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		var n uint64
		isDB := strings.HasPrefix(name, DatabasePrefix)
		if !isDB && !strings.HasPrefix(name, CheckpointPrefix) {
			continue
		}
		if _, err := fmt.Sscanf(name[strings.IndexByte(name, '-')+1:], "%d", &n); err == nil {
			s.next = max(s.next, n)
		}
		if name == s.current.Database {
			continue
		}
		if err := s.volume.RemoveAll(s.Path(name)); err != nil {
			return err
		}
	}
	return nil
}

// replace makes the database in dir the live one in the manifest, in place of the database in previous. durable is the
// index up to which the new database has all commands on disk. replace returns fault.Unavailable if a snapshot was
// taken or received in the meantime, and fault.Internal if dir does not exist.
func (s *Store) replace(previous, dir string, durable uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil || s.current.Database != previous ||
		s.current.Snapshot != nil && s.current.Snapshot.Applied > durable {
		return fault.New(fault.Unavailable, "group.reinstall", "a snapshot was taken or received meanwhile")
	}
	if !s.volume.Exists(s.Path(dir)) {
		return fault.New(fault.Internal, "group.reinstall", "the received database "+s.Path(dir)+" is gone")
	}
	return s.writeLocked(Manifest{Database: dir, Snapshot: s.current.Snapshot})
}
