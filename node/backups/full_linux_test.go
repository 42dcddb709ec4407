package backups_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/node/backups"
)

// If the file system is full, the issue of the schedule has a hint, and no incomplete file remains.
func TestSchedule_FullDirectoryIsShown(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no small file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := new(shared).start(t, "a", backups.Config{Directory: dir, Every: time.Hour, Keep: 2, Verify: true})
		s.member.leads.Store(true)
		pass(time.Minute)
		issues := s.Issues()
		if len(issues) != 1 || !strings.Contains(issues[0].Reason, "no space left on device (free space there") {
			t.Errorf("%v", issues)
		}
		if left := files(t, dir); len(left) != 0 {
			t.Errorf("%q", left)
		}
		if err := os.WriteFile(filepath.Join(dir, "probe"), make([]byte, 60<<10), 0o600); err != nil {
			t.Errorf("the space is not free again: %v", err)
		}
	})
}
