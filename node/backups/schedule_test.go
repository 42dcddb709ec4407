package backups_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/node/backups"
	"github.com/quorate/quorate/raftfsm/backup"
)

const every = 10 * time.Minute

// pass lets virtual time pass, and waits until all goroutines of the test are blocked.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestSchedule_WritesOnePerPeriodAndKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "default-by-hand.qs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := new(shared).start(t, "a", backups.Config{Directory: dir, Every: every, Keep: 3, Verify: true})
		pass(time.Minute)
		if n := s.member.written.Load(); n != 0 {
			t.Errorf("%d backups without leadership", n)
		}
		s.member.leads.Store(true)
		pass(time.Hour)
		if n := s.member.written.Load(); n != 7 {
			t.Errorf("%d backups in the six periods after the first", n)
		}
		names := files(t, dir)
		if len(names) != 4 || names[3] != "default-by-hand.qs" {
			t.Fatalf("%q: not the newest three and the file of the user", names)
		}
		inspect(t, filepath.Join(dir, names[2]))
		last := s.Status().Last
		if last == nil || last.Name != names[2] || last.Node != "a" || !last.Verified || len(s.Issues()) != 0 {
			t.Errorf("%+v %v", last, s.Issues())
		}
		info, err := os.Stat(filepath.Join(dir, names[2]))
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() != last.Bytes {
			t.Errorf("%v %v, status has %d bytes", info, err, last.Bytes)
		}
		if got := s.metric(t, "quorate_scheduled_backup_last_success_timestamp_seconds", ""); got != float64(
			last.Time.Unix()) {
			t.Errorf("the time of the last backup is %v, not %v", got, last.Time.Unix())
		}
	})
}

func TestSchedule_ContinuesOnNextLeader(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := backups.Config{Directory: dir, Every: every, Keep: 100, Verify: true}
		cluster := new(shared)
		nodes := []*started{cluster.start(t, "a", c), cluster.start(t, "b", c), cluster.start(t, "c", c)}
		for i := range 30 {
			for j, n := range nodes {
				n.member.leads.Store(j == i%3)
			}
			pass(4 * time.Minute) // each leader sees a part of a period
		}
		if n := cluster.written.Load(); n != 12 && n != 13 {
			t.Errorf("%d backups in 120 minutes", n)
		}
		for _, n := range nodes {
			if n.metric(t, "quorate_scheduled_backup_runs_total", "ok") == 0 {
				t.Error("a leader wrote no backup")
			}
		}
	})
}

// Two nodes that both believe they are the leader must not write at the same time. They must not write twice for one
// period either.
func TestSchedule_TwoLeadersNeverWriteAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := backups.Config{Directory: dir, Every: every, Keep: 100, Verify: true}
		cluster := &shared{takes: 3 * time.Minute}
		for _, node := range []string{"a", "b", "c"} {
			cluster.start(t, node, c).member.leads.Store(true)
		}
		pass(2 * time.Hour)
		if cluster.most.Load() != 1 {
			t.Errorf("%d backups were written at the same time", cluster.most.Load())
		}
		if n := len(files(t, dir)); n != 13 && n != 12 {
			t.Errorf("%d backups in 120 minutes", n)
		}
	})
}

func TestSchedule_NextNodeTakesOverFromOneThatIsCutOff(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := backups.Config{Directory: dir, Every: time.Hour, Keep: 100, Verify: true}
		cluster := &shared{takes: 5 * time.Minute}
		a, b := cluster.start(t, "a", c), cluster.start(t, "b", c)
		a.member.leads.Store(true)
		pass(time.Minute)
		a.member.cut.Store(true)
		a.member.leads.Store(false)
		b.member.leads.Store(true)
		pass(10 * time.Minute)
		if got := a.metric(t, "quorate_scheduled_backup_runs_total", "given_up"); got != 1 {
			t.Errorf("the node that was cut off gave up %v backups", got)
		}
		if got := b.metric(t, "quorate_scheduled_backup_runs_total", "ok"); got != 1 {
			t.Errorf("the next leader wrote %v backups", got)
		}
		if names := files(t, dir); len(names) != 1 || cluster.most.Load() != 1 {
			t.Errorf("%q, at most %d at the same time", names, cluster.most.Load())
		}
	})
}

func TestSchedule_StopReleasesTheClaim(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := backups.Config{Directory: dir, Every: time.Hour, Keep: 100, Verify: true}
		cluster := &shared{takes: 10 * time.Second}
		a, b := cluster.start(t, "a", c), cluster.start(t, "b", c)
		a.member.leads.Store(true)
		pass(5 * time.Second)
		if got := a.Status().Running; got != "" && got != "a" {
			t.Errorf("%q writes a backup", got)
		}
		a.stop()
		b.member.leads.Store(true)
		pass(15 * time.Second)
		if got := b.metric(t, "quorate_scheduled_backup_runs_total", "ok"); got != 1 || len(b.Issues()) != 0 {
			t.Errorf("the next leader wrote %v backups, issues %v", got, b.Issues())
		}
		if names := files(t, dir); len(names) != 1 {
			t.Errorf("%q", names)
		}
	})
}

func TestSchedule_FailureIsShownAndTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "unmounted")
	synctest.Test(t, func(t *testing.T) {
		cluster := new(shared)
		c := backups.Config{Directory: dir, Every: time.Hour, Keep: 2, Verify: true}
		a, b := cluster.start(t, "a", c), cluster.start(t, "b", c)
		a.member.leads.Store(true)
		pass(10 * time.Minute)
		failed := a.metric(t, "quorate_scheduled_backup_runs_total", "failed")
		if failed < 2 || failed > 3 {
			t.Errorf("%v attempts in ten minutes", failed)
		}
		for _, s := range []*started{a, b} { // every node reports the failure
			issues := s.Issues()
			if len(issues) != 1 || !strings.Contains(issues[0].Reason, "create the directory, or mount its disk") {
				t.Errorf("%v", issues)
			}
			if s.metric(t, "quorate_scheduled_backup_failing", "") != 1 {
				t.Error("the metric says that no backup failed")
			}
		}
		if log := a.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "hint=") {
			t.Error(log)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		pass(6 * time.Minute)
		if len(a.Issues()) != 0 || a.Status().Last == nil || a.metric(t, "quorate_scheduled_backup_failing", "") != 0 {
			t.Errorf("%v %+v", a.Issues(), a.Status())
		}
	})
}

func TestSchedule_EncryptsWithKeyFile(t *testing.T) {
	dir, key := t.TempDir(), backup.NewKey()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := new(shared).start(t, "a", backups.Config{Directory: dir, Every: every, Keep: 1, Verify: true,
			KeyFile: path})
		s.member.leads.Store(true)
		pass(time.Minute)
		names := files(t, dir)
		if len(names) != 1 || !s.Status().Last.Verified {
			t.Fatalf("%q %+v %s", names, s.Status(), s.log)
		}
		inspect(t, filepath.Join(dir, names[0]), key)
	})
}

// The next backup removes the incomplete file of a killed process. It keeps files that another cluster or a command
// may be writing.
func TestSchedule_RemovesIncompleteFiles(t *testing.T) {
	dir := t.TempDir()
	others := []string{".default-eu-20200101T000000Z.qs.1.partial", ".default-by-hand.qs.2.partial"}
	for _, name := range append([]string{".default-20200101T000000Z.qs.1.partial"}, others...) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s := new(shared).start(t, "a", backups.Config{Directory: dir, Every: every, Keep: 1})
		s.member.leads.Store(true)
		pass(time.Minute)
		names := files(t, dir)
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(others, n) })
		if len(names) != 1 || strings.HasPrefix(names[0], ".") {
			t.Errorf("%q", names)
		}
		for _, name := range others {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestSchedule_NothingConfiguredDoesNothing(t *testing.T) {
	s := new(shared).start(t, "a", backups.Config{})
	s.stop()
	if s.Status() != nil || len(s.Issues()) != 0 {
		t.Errorf("%+v %v", s.Status(), s.Issues())
	}
}
