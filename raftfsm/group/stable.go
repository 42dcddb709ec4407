package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// raft's own names for the parts of a vote.
const (
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// keyVote is our name for the whole vote: term (8 bytes) and candidate in one value.
var keyVote = []byte("QuorateVote")

// stable keeps term and vote. raft writes a vote in two calls; a crash between them would
// pair a new term with an old candidate, who would then be granted that term's vote
// without the check of its log. So the term is held until the candidate arrives, and both
// are stored as one value: atomic, and one fsync instead of two.
//
// raft calls it from its main goroutine; the lock is for readers.
type stable struct {
	store stableStore
	fatal func(error)
	step  func(string)
	first func() error // waits for what the log still writes: see unsynced

	mu   sync.Mutex
	term uint64 // of a vote whose candidate has not arrived
	held bool
}

// Set stores a value durably.
func (s *stable) Set(key, val []byte) error {
	if string(key) != keyLastVoteCand {
		return s.check(s.store.Set(key, val))
	}
	s.mu.Lock()
	term, held := s.term, s.held
	s.held = false
	s.mu.Unlock()
	if !held {
		return fault.New(fault.Internal, "group.stable", "a vote came without its term")
	}
	if err := s.first(); err != nil {
		return err
	}
	s.step("vote")
	err := s.check(s.store.Set(keyVote, append(binary.BigEndian.AppendUint64(nil, term), val...)))
	s.step("voted")
	return err
}

// SetUint64 stores a number durably; the term of a vote waits for its candidate.
func (s *stable) SetUint64(key []byte, val uint64) error {
	if string(key) != keyLastVoteTerm {
		if err := s.first(); err != nil {
			return err
		}
		return s.check(s.store.SetUint64(key, val))
	}
	s.mu.Lock()
	s.term, s.held = val, true
	s.mu.Unlock()
	return nil
}

// Get reads a value; raftboltdb.ErrKeyNotFound if there is none.
func (s *stable) Get(key []byte) ([]byte, error) {
	if string(key) != keyLastVoteCand {
		return s.store.Get(key)
	}
	_, cand, err := s.vote()
	return cand, err
}

// GetUint64 reads a number; raftboltdb.ErrKeyNotFound if there is none.
func (s *stable) GetUint64(key []byte) (uint64, error) {
	if string(key) != keyLastVoteTerm {
		return s.store.GetUint64(key)
	}
	term, _, err := s.vote()
	return term, err
}

func (s *stable) vote() (uint64, []byte, error) {
	b, err := s.store.Get(keyVote)
	if err != nil {
		return 0, nil, err
	}
	if len(b) < 8 {
		return 0, nil, &fault.Error{Code: fault.Corrupt, Op: "group.stable", Msg: fmt.Sprintf("the stored vote has %d bytes", len(b))}
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}

// check ends the process when a term or vote could not be stored: raft would panic.
func (s *stable) check(err error) error {
	if err == nil {
		return nil
	}
	err = &fault.Error{Code: fault.Internal, Op: "group.stable", Msg: "cannot store term or vote", Err: err,
		Hint: "free disk space or replace the disk, then start the node again"}
	s.fatal(err)
	return err
}

// Close closes the file.
func (s *stable) Close() error {
	if err := s.store.Close(); err != nil {
		return errors.Join(errors.New("closing terms and votes"), err)
	}
	return nil
}
