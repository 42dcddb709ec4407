package raftlog

import (
	"testing"
	"time"
)

// seams implements Role, Events and Process for a log in a test.
type seams struct {
	ahead bool   // this server leads other voters
	base  uint64 // end of the newest snapshot; 0 = none
	fatal func(error)
	step  func(string)
}

func (s *seams) Running() bool          { return s.ahead }
func (s *seams) Base() (Position, bool) { return Position{Term: 1, Index: s.base}, s.base > 0 }
func (s *seams) LeadsOthers() bool      { return s.ahead }
func (s *seams) Lost(int)               {}
func (s *seams) Raise(uint8) error      { return nil }
func (s *seams) Fatal(err error)        { s.fatal(err) }

func (s *seams) Appended(time.Duration, int, int) {}

func (s *seams) Step(name string) {
	if s.step != nil {
		s.step(name)
	}
}

// logsOver wraps an engine for server a.
func logsOver(engine Backend, s *seams) *Store { return NewStore(engine, "a", 1, s, s, s) }

// unexpected returns a Fatal that fails the test.
func unexpected(t testing.TB) func(error) {
	return func(err error) { t.Errorf("fatal: %v", err) }
}
