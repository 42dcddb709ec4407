package postgresql_test

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/component/state/postgresql/postgrestest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// TestStore_HistoryWithOutagesIsLinearizable records the calls of clients while one server fails. An order of the
// calls must exist that explains all answers.
func TestStore_HistoryWithOutagesIsLinearizable(t *testing.T) {
	if testing.Short() {
		t.Skip("kills, pauses and fills a server repeatedly")
	}
	const calls, rounds = 200, 3
	for name, outage := range map[string]func(*postgrestest.Server, *statetest.Recording){
		"Killed": func(s *postgrestest.Server, _ *statetest.Recording) {
			s.Kill()
			s.Run()
			s.Wait()
		},
		"Restarted": func(s *postgrestest.Server, _ *statetest.Recording) {
			s.ShutDown()
			s.Run()
			s.Wait()
		},
		"Paused": func(s *postgrestest.Server, r *statetest.Recording) {
			s.Pause(true)
			r.Failed(1, fault.Indeterminate, fault.Timeout, fault.Unavailable)
			s.Pause(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := databases.Start(t)
			store := opened(t, postgresql.V2, "connectionString", s.URL(), "timeout", "2s")
			r := statetest.Record(t, store, "a||1", "a||2", "a||3", "a||4")
			for range rounds {
				r.More(calls)
				outage(s, r)
			}
			r.More(calls)
			r.Check()
		})
	}
}

// TestStore_HistoryWithFullDiskIsLinearizable puts the table on a small file system, and fills this file system while
// clients write.
func TestStore_HistoryWithFullDiskIsLinearizable(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a file system")
	}
	folder := filepath.Join(postgrestest.NewHome(t), "small")
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(folder)) })
	testutil.Must(t, os.Mkdir(folder, 0o700))
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("no small file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if uid, gid, other := postgrestest.Owner(t); other {
		testutil.Must(t, os.Chown(folder, int(uid), int(gid)))
	}
	s := databases.Start(t)
	s.Do("CREATE TABLESPACE small LOCATION '" + folder + "'")
	store := opened(t, postgresql.V2, "connectionString", s.URL()+"&default_tablespace=small")
	r := statetest.Record(t, store, "a||1", "a||2", "a||3", "a||4")
	random := make([]byte, 32<<10) // PostgreSQL cannot compress it
	_, _ = rand.Read(random)
	large := `"` + hex.EncodeToString(random) + `"`
	for round := range 3 {
		r.More(100)
		s.Do("CREATE TABLE filler (b bytea) TABLESPACE small")
		s.Do("ALTER TABLE filler ALTER b SET STORAGE EXTERNAL")
		// The rows of a failed INSERT keep their space until the table is dropped.
		if _, err := s.Try(t.Context(), "INSERT INTO filler SELECT $1::bytea FROM generate_series(1, 2000)",
			make([]byte, 8000)); err == nil {
			t.Fatal("the small file system has room for 16 MB")
		}
		testutil.Eventually(t, func() error {
			err := statetest.Set(t.Context(), store, statetest.Put("b||"+strconv.Itoa(round), large))
			if err == nil {
				return os.ErrExist
			}
			statetest.WantFault(t, err, fault.ReadOnly, "disk of PostgreSQL is full", "free space")
			return nil
		})
		s.Do("DROP TABLE filler")
		testutil.Eventually(t, func() error { return statetest.Set(t.Context(), store, statetest.Put("b||k", "1")) })
	}
	r.More(100)
	r.Check()
}
