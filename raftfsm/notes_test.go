package raftfsm_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

func TestNotes_AreReplicatedAndChangeOnlyAtTheirRevision(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead := c.leader()
	if n, err := lead.Note(t.Context(), "plan"); err != nil || n.Value != nil || n.Revision != 0 {
		t.Fatalf("before the first: %+v %v", n, err)
	}
	first, err := lead.SetNote(t.Context(), "plan", []byte("1"), 0)
	must(t, err)
	if _, err := lead.SetNote(t.Context(), "plan", []byte("x"), 0); !fault.Is(err, fault.Conflict) {
		t.Errorf("created twice: %v", err)
	}
	second, err := lead.SetNote(t.Context(), "plan", []byte("2"), first)
	must(t, err)
	if _, err := lead.SetNote(t.Context(), "plan", []byte("x"), first); !fault.Is(err, fault.Conflict) {
		t.Errorf("an old revision was taken: %v", err)
	}
	for _, h := range c.running() {
		if n, err := h.Note(t.Context(), "plan"); err != nil || string(n.Value) != "2" || n.Revision != second {
			t.Errorf("%s: %+v %v", h.Identity().Node, n, err)
		}
		eventually(t, func() error {
			if n, err := h.LocalNote("plan"); err != nil || string(n.Value) != "2" {
				return fmt.Errorf("%s: %+v %w", h.Identity().Node, n, err)
			}
			return nil
		})
	}
}

func TestNotes_AreInNoBackupAndSurviveRestore(t *testing.T) {
	c := startCluster(t, 1, nil)
	lead := c.leader()
	set(t, lead.Store("", "s"), "app0||k", "v", state.Strong)
	revision, err := lead.SetNote(t.Context(), "plan", []byte("a secret plan"), 0)
	must(t, err)
	saved := save(t, lead)
	if bytes.Contains(saved, []byte("a secret plan")) {
		t.Error("a backup contains a note")
	}
	restore(t, lead, saved)
	if n, err := lead.Note(t.Context(), "plan"); err != nil || string(n.Value) != "a secret plan" {
		t.Errorf("after a restore: %+v %v", n, err)
	}
	if _, err := lead.SetNote(t.Context(), "plan", []byte("next"), revision); err != nil {
		t.Errorf("after a restore: %v", err)
	}
}
