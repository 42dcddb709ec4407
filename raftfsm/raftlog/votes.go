package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/fault"
)

// Raft's keys for the current term, and for the term and the candidate of the newest vote.
const (
	KeyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// KeyVote is the key of the newest vote. The value is the term (8 bytes, big-endian), followed by the candidate.
var KeyVote = []byte("QuorateVote")

// Votes stores the current term and the newest vote.
//
// A vote consists of a term and a candidate. Raft stores the term first, and the candidate in a second call. After a
// crash between the two calls, the new term would be combined with the candidate of an earlier term. So Votes keeps the
// term of a vote in memory until raft stores the candidate, and then stores both as one value. This also saves one
// fsync.
//
// Only raft's main goroutine may call Set and SetUint64. The other methods return what is on disk, and are safe for
// concurrent use.
type Votes struct {
	store    StableStore
	process  Process
	unsynced *unsynced  // entries still being written; Votes waits for them
	floors   *FloorFile // nil = no floor

	term uint64 // term of a vote whose candidate has not arrived, if held is true
	held bool
}

// NewVotes returns a Votes that wraps the given StableStore. Before Votes stores a term or a vote, it waits until
// the unsynced entries of log are on disk.
func NewVotes(store StableStore, log *Store, process Process) *Votes {
	return &Votes{store: store, unsynced: log.unsynced, process: process}
}

// Set stores a value durably. If the value is the candidate of a vote, Set stores it together with the term of the
// vote, which SetUint64 has kept in memory. It returns fault.Internal if SetUint64 has kept no term for this
// candidate.
func (s *Votes) Set(key, val []byte) error {
	if string(key) != keyLastVoteCand {
		return s.check(s.store.Set(key, val))
	}
	term, held := s.term, s.held
	s.held = false
	if !held {
		return fault.New(fault.Internal, "group.stable", "a vote without a term")
	}
	if err := s.unsynced.drain(); err != nil {
		return err
	}
	s.process.Step("vote")
	err := s.check(s.store.Set(KeyVote, append(binary.BigEndian.AppendUint64(nil, term), val...)))
	s.process.Step("voted")
	if err != nil || s.floors == nil {
		return err
	}
	return s.check(s.floors.vote(term, string(val)))
}

// SetUint64 stores a number durably, except the term of a vote. It keeps the term of a vote in memory until Set stores
// the candidate.
func (s *Votes) SetUint64(key []byte, val uint64) error {
	if string(key) != keyLastVoteTerm {
		if err := s.unsynced.drain(); err != nil {
			return err
		}
		if err := s.check(s.store.SetUint64(key, val)); err != nil {
			return err
		}
		if s.floors != nil && string(key) == KeyCurrentTerm {
			s.floors.observeTerm(val)
		}
		return nil
	}
	s.term, s.held = val, true
	return nil
}

// Get returns a value; raftboltdb.ErrKeyNotFound if there is none.
func (s *Votes) Get(key []byte) ([]byte, error) {
	if string(key) != keyLastVoteCand {
		return s.store.Get(key)
	}
	_, cand, err := s.Vote()
	return cand, err
}

// GetUint64 returns a number; raftboltdb.ErrKeyNotFound if there is none.
func (s *Votes) GetUint64(key []byte) (uint64, error) {
	if string(key) != keyLastVoteTerm {
		return s.store.GetUint64(key)
	}
	term, _, err := s.Vote()
	return term, err
}

// CurrentTerm returns the stored term; 0 = no term was stored yet.
func (s *Votes) CurrentTerm() (uint64, error) {
	term, err := s.store.GetUint64([]byte(KeyCurrentTerm))
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return term, err
}

// Vote returns the term and the candidate of the newest vote. It returns raftboltdb.ErrKeyNotFound if this server
// has never voted.
func (s *Votes) Vote() (uint64, []byte, error) {
	b, err := s.store.Get(KeyVote)
	if err != nil {
		return 0, nil, err
	}
	if len(b) < 8 {
		return 0, nil, &fault.Error{Code: fault.Corrupt, Op: "group.stable",
			Msg: fmt.Sprintf("the stored vote has %d bytes", len(b))}
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}

// check ends the process if a term or a vote could not be stored, because raft would otherwise panic. The parameter err
// is the error of the write. If err is nil, check does nothing.
func (s *Votes) check(err error) error {
	if err == nil {
		return nil
	}
	err = &fault.Error{Code: fault.Internal, Op: "group.stable", Msg: "cannot store term or vote", Err: err,
		Hint: "free disk space or replace the disk, then start the node again"}
	s.process.Fatal(err)
	return err
}

// Close closes the file.
func (s *Votes) Close() error {
	if err := s.store.Close(); err != nil {
		return errors.Join(errors.New("closing terms and votes"), err)
	}
	return nil
}
