package redis_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
)

// TestStore_HistoryWithOutagesIsLinearizable records the calls of clients while one server fails. An order of the
// calls must exist that explains all answers.
func TestStore_HistoryWithOutagesIsLinearizable(t *testing.T) {
	if testing.Short() {
		t.Skip("kills, pauses and fills a server repeatedly")
	}
	const calls, rounds = 300, 3
	for name, outage := range map[string]func(*redistest.Server, *statetest.Recording){
		"Killed": func(s *redistest.Server, _ *statetest.Recording) { s.Restart() },
		"Restarted": func(s *redistest.Server, _ *statetest.Recording) {
			s.Stop()
			s.Run()
			s.Wait()
		},
		"Paused": func(s *redistest.Server, r *statetest.Recording) {
			s.Signal(syscall.SIGSTOP)
			r.Failed(1, fault.Indeterminate, fault.Timeout, fault.Unavailable)
			s.Signal(syscall.SIGCONT)
		},
		"Full": func(s *redistest.Server, r *statetest.Recording) {
			s.Do("config", "set", "maxmemory", "1mb")
			r.Failed(1, fault.ReadOnly)
			s.Do("config", "set", "maxmemory", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.StartDurable(t, "--maxmemory-policy", "noeviction")
			store := opened(t, "redisHost", s.Address, "readTimeout", "500ms")
			r := statetest.Record(t, store, "a||1", "a||2", "a||3", "a||4")
			for range rounds {
				r.More(calls)
				outage(s, r)
			}
			r.More(calls)
			r.Check()
			if info := s.Do("info", "replication").(string); !strings.Contains(info, "role:master") {
				t.Errorf("the server is not the one that was started: %s", info)
			}
		})
	}
}
