package raftlog

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func openStable(t testing.TB, path string) *Votes {
	t.Helper()
	s, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions()})
	must(t, err)
	return NewVotes(s, logsOver(nil, &seams{}), &seams{fatal: unexpected(t)})
}

// vote stores a vote as raft does: in two calls.
func vote(t testing.TB, s *Votes, term uint64, candidate string) {
	t.Helper()
	must(t, s.SetUint64([]byte(keyLastVoteTerm), term))
	must(t, s.Set([]byte(keyLastVoteCand), []byte(candidate)))
}

// stored reads a vote as raft does.
func stored(t testing.TB, s *Votes) (uint64, string) {
	t.Helper()
	term, err := s.GetUint64([]byte(keyLastVoteTerm))
	must(t, err)
	cand, err := s.Get([]byte(keyLastVoteCand))
	must(t, err)
	return term, string(cand)
}

func TestVotes_VoteIsAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, StableName)
	s := openStable(t, path)
	vote(t, s, 4, "old")
	images := map[string]string{}
	image := func(at string) {
		images[at] = filepath.Join(t.TempDir(), StableName)
		testutil.CopyTree(t, path, images[at])
	}
	s.process = &seams{fatal: unexpected(t), step: image}
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 5))
	image("between the two calls")
	must(t, s.Set([]byte(keyLastVoteCand), []byte("new")))
	must(t, s.Close())
	for at, want := range map[string]struct {
		term uint64
		cand string
	}{"between the two calls": {4, "old"}, "vote": {4, "old"}, "voted": {5, "new"}} {
		crashed := openStable(t, images[at])
		if term, cand := stored(t, crashed); term != want.term || cand != want.cand {
			t.Errorf("a crash at %q leaves term %d for %q, want %d for %q", at, term, cand, want.term, want.cand)
		}
		must(t, crashed.Close())
	}
}

func TestVotes_TermIsHiddenUntilCandidateArrives(t *testing.T) {
	s := openStable(t, filepath.Join(t.TempDir(), StableName))
	defer func() { must(t, s.Close()) }()
	vote(t, s, 4, "old")
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 5))
	if term, cand := stored(t, s); term != 4 || cand != "old" {
		t.Errorf("half a vote is visible: term %d for %q", term, cand)
	}
	must(t, s.Set([]byte(keyLastVoteCand), []byte("new")))
	if term, cand := stored(t, s); term != 5 || cand != "new" {
		t.Errorf("the vote reads as term %d for %q", term, cand)
	}
	if err := s.Set([]byte(keyLastVoteCand), []byte("twice")); !fault.Is(err, fault.Internal) {
		t.Errorf("a candidate without a term was accepted: %v", err)
	}
}

func TestVotes_MissingValuesReadAsRaftExpects(t *testing.T) {
	s := openStable(t, filepath.Join(t.TempDir(), StableName))
	defer func() { must(t, s.Close()) }()
	for _, key := range []string{keyLastVoteCand, "CurrentTerm", "LastVoteTerm"} {
		_, err := s.Get([]byte(key))
		if err == nil {
			_, err = s.GetUint64([]byte(key))
		}
		// raft compares this text
		if !errors.Is(err, raftboltdb.ErrKeyNotFound) || err.Error() != "not found" {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestVotes_ValuesSurviveReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), StableName)
	s := openStable(t, path)
	must(t, s.SetUint64([]byte("CurrentTerm"), 9))
	must(t, s.Set([]byte("other"), []byte("value")))
	vote(t, s, 9, "me")
	must(t, s.Close())
	s = openStable(t, path)
	defer func() { must(t, s.Close()) }()
	if n, err := s.GetUint64([]byte("CurrentTerm")); n != 9 || err != nil {
		t.Errorf("term %d, %v", n, err)
	}
	if b, err := s.Get([]byte("other")); !bytes.Equal(b, []byte("value")) || err != nil {
		t.Errorf("other %q, %v", b, err)
	}
	if term, cand := stored(t, s); term != 9 || cand != "me" {
		t.Errorf("vote %d for %q", term, cand)
	}
}

func TestVotes_DamagedVoteIsAnError(t *testing.T) {
	s := openStable(t, filepath.Join(t.TempDir(), StableName))
	defer func() { must(t, s.Close()) }()
	must(t, s.store.Set(KeyVote, []byte("short")))
	_, err := s.GetUint64([]byte(keyLastVoteTerm))
	wantCode(t, err, fault.Corrupt)
}

func TestVotes_FailedWriteIsFatal(t *testing.T) {
	s := openStable(t, filepath.Join(t.TempDir(), StableName))
	var fatal []error
	s.process = &seams{fatal: func(err error) { fatal = append(fatal, err) }}
	must(t, s.Close())
	must(t, s.SetUint64([]byte(keyLastVoteTerm), 5))
	if err := s.Set([]byte(keyLastVoteCand), []byte("new")); err == nil {
		t.Fatal("a vote was stored in a closed file")
	}
	if err := s.SetUint64([]byte("CurrentTerm"), 5); err == nil {
		t.Fatal("a term was stored in a closed file")
	}
	if len(fatal) != 2 {
		t.Errorf("fatal was called %d times, want 2", len(fatal))
	}
}

var _ raft.StableStore = (*Votes)(nil)
