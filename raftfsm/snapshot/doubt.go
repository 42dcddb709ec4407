package snapshot

import "fmt"

// Cause is the reason why a replica's state is not trusted. The values are metric labels.
type Cause string

// The causes.
const (
	// Differs means that the state of this server is different from the state of a majority of the voters. The state
	// of this server is replaced by a copy of another server's state.
	Differs Cause = "differs"
	// Damaged means that a file of the database is damaged, or that the stored records differ from the records that
	// were applied. The state of this server is replaced by a copy of another server's state.
	Damaged Cause = "damaged"
	// Split means that the states of voters differ, and no majority has the same state. This server keeps its state
	// but serves no requests from it, until a majority has the same state or an operator decides.
	Split Cause = "split"
)

// Doubt is the reason why a replica does not trust its database and serves no requests. It survives a restart,
// because the manifest stores it with the name of the database.
type Doubt struct {
	Cause Cause  `json:"cause"`
	Index uint64 `json:"index"`           // entry at which states were compared; for Damaged, the newest one applied
	Own   string `json:"own,omitempty"`   // digest of this server's state at Index; empty for Damaged
	Other string `json:"other,omitempty"` // digest of a majority; for Split, a digest of another voter
	Why   string `json:"why,omitempty"`   // for Damaged: what is wrong
}

// Replaceable reports whether a copy from another server can end the doubt.
func (d *Doubt) Replaceable() bool { return d != nil && d.Cause != Split }

// Describe returns a text for operators that says what is wrong and what this server does about it.
func (d *Doubt) Describe() string {
	switch d.Cause {
	case Differs:
		return fmt.Sprintf("at entry %d its state has digest %s, that of a majority of the voters has %s; it copies "+
			"the state of another server", d.Index, d.Own, d.Other)
	case Damaged:
		return fmt.Sprintf("at entry %d its database is damaged (%s); it copies the state of another server", d.Index,
			d.Why)
	default:
		return fmt.Sprintf("at entry %d its state has digest %s and another voter's %s, and no majority agrees on "+
			"either; it waits for a majority, or for an operator", d.Index, d.Own, d.Other)
	}
}

// Next returns what this server does about the doubt, as a phrase.
func (d *Doubt) Next() string {
	if d.Replaceable() {
		return "copies the state of another server"
	}
	return "waits until a majority of the voters agree: see 'a partition is split' in docs/troubleshooting.md"
}

// setDoubt records in the manifest that the database in the given directory is not trusted, with d as the reason. If d
// is nil, setDoubt records that the database is trusted. It does nothing if another database is live by now.
func (s *Store) setDoubt(database string, d *Doubt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Database != database {
		return nil // a received database has replaced it
	}
	return s.writeLocked(Manifest{Database: database, Snapshot: s.current.Snapshot, Doubt: d})
}
