package backups_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/node/backups"
)

// script returns a command that runs text with the shell. $0 is a directory.
func script(t *testing.T, dir, text string) []string {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	return []string{sh, "-c", text, dir}
}

const store = `case $QUORATE_BACKUP_ACTION in
save) cat >"$0/$QUORATE_BACKUP_NAME" ;;
read) cat "$0/$QUORATE_BACKUP_NAME" ;;
remove) rm -f "$0/$QUORATE_BACKUP_NAME" ;;
esac`

func TestCommand_StoresReadsAndRemoves(t *testing.T) {
	dir := t.TempDir()
	c := backups.Config{Command: script(t, dir, store), Every: every, Keep: 2, Verify: true}
	synctest.Test(t, func(t *testing.T) {
		cluster := new(shared)
		a, b := cluster.start(t, "a", c), cluster.start(t, "b", c)
		a.member.leads.Store(true)
		pass(2 * every)
		a.member.leads.Store(false)
		b.member.leads.Store(true)
		pass(2 * every)
		names := files(t, dir)
		if len(names) != 2 || !b.Status().Last.Verified || b.Status().Last.Name != names[1] {
			t.Fatalf("%q %+v %s", names, b.Status(), b.log)
		}
		inspect(t, filepath.Join(dir, names[1]))
	})
}

func TestCommand_FailureIsShownAndLeavesNothing(t *testing.T) {
	removes := "[ $QUORATE_BACKUP_ACTION = remove ] || "
	short := strings.Replace(store, "save) cat", "save) head -c 50000", 1)
	for name, c := range map[string]struct{ text, want string }{
		"fails":         {removes + "{ cat >/dev/null; echo no bucket >&2; exit 3; }", "no bucket"},
		"does not read": {"exit 0", "it must read its standard input to the end"},
		"stores less":   {short + "\n[ $QUORATE_BACKUP_ACTION != save ] || cat >/dev/null", "reading it back failed"},
		"cannot read": {strings.Replace(store, "read) cat", "read) exit 4 ;; never) cat", 1),
			"QUORATE_BACKUP_ACTION=read"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := backups.Config{Command: script(t, dir, c.text), Every: time.Hour, Keep: 2, Verify: true}
			synctest.Test(t, func(t *testing.T) {
				s := new(shared).start(t, "a", config)
				s.member.leads.Store(true)
				pass(4 * time.Minute)
				if issues := s.Issues(); len(issues) != 1 || !strings.Contains(issues[0].Reason, c.want) {
					t.Errorf("%v %s", issues, s.log)
				}
				if left := files(t, dir); len(left) != 0 {
					t.Errorf("%q", left)
				}
				if n := s.metric(t, "quorate_scheduled_backup_runs_total", "failed"); n != 1 {
					t.Errorf("%v failures", n)
				}
			})
		})
	}
}

func TestCommand_MissingProgramHasHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(shared).start(t, "a", backups.Config{Command: []string{"no-such-program"}, Every: time.Hour, Keep: 2})
		s.member.leads.Store(true)
		pass(time.Minute)
		if issues := s.Issues(); len(issues) != 1 || !strings.Contains(issues[0].Reason, "whole path") {
			t.Errorf("%v", issues)
		}
	})
}

// A failed removal is tried again after the next backup.
func TestCommand_FailedRemovalIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	text := strings.Replace(store, "remove) ", "remove) [ ! -e $0/locked ] || exit 1; ", 1)
	if err := os.WriteFile(filepath.Join(dir, "locked"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := backups.Config{Command: script(t, dir, text), Every: every, Keep: 1}
	synctest.Test(t, func(t *testing.T) {
		s := new(shared).start(t, "a", c)
		s.member.leads.Store(true)
		pass(3 * every)
		if n := s.metric(t, "quorate_scheduled_backup_removals_total", "failed"); n < 2 {
			t.Errorf("%v failed removals", n)
		}
		if err := os.Remove(filepath.Join(dir, "locked")); err != nil {
			t.Fatal(err)
		}
		pass(every)
		if names := files(t, dir); len(names) != 1 {
			t.Errorf("%q", names)
		}
	})
}
