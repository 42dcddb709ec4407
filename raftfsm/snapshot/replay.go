package snapshot

import (
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/kv"
)

// Reader reads and verifies entries of a log.
type Reader interface {
	Read(index uint64, l *raft.Log) error
}

// Replay applies a range of entries of a log, from index first to index last, to the machine. It skips no-ops and
// barriers, which never reach the state machine.
func Replay(log Reader, m *kv.Machine, first, last uint64) error {
	var l raft.Log
	for i := first; i <= last; i++ {
		l = raft.Log{}
		if err := log.Read(i, &l); err != nil {
			return err
		}
		e := kv.Entry{Index: l.Index, Term: l.Term}
		switch l.Type {
		case raft.LogCommand:
			e.Data = l.Data
		case raft.LogConfiguration:
		default:
			continue // such an entry never reaches the machine
		}
		if r := m.Apply([]kv.Entry{e}); r[0].Err != nil {
			return r[0].Err
		}
	}
	return nil
}
