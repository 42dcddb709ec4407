package redis_test

import (
	"strings"
	"syscall"
	"testing"

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
	const calls, rounds = 300, 3
	for name, outage := range map[string]func(*server, *statetest.Recording){
		"Killed": func(s *server, _ *statetest.Recording) {
			s.kill()
			s.run()
			s.wait()
		},
		"Restarted": func(s *server, _ *statetest.Recording) {
			testutil.Must(s.t, s.process.Process.Signal(syscall.SIGTERM))
			_ = s.process.Wait()
			s.run()
			s.wait()
		},
		"Paused": func(s *server, r *statetest.Recording) {
			s.signal(syscall.SIGSTOP)
			r.Failed(1, fault.Indeterminate, fault.Timeout, fault.Unavailable)
			s.signal(syscall.SIGCONT)
		},
		"Full": func(s *server, r *statetest.Recording) {
			s.do("config", "set", "maxmemory", "1mb")
			r.Failed(1, fault.ReadOnly)
			s.do("config", "set", "maxmemory", "0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
			store := opened(t, "redisHost", s.address, "readTimeout", "500ms")
			r := statetest.Record(t, store, "a||1", "a||2", "a||3", "a||4")
			for range rounds {
				r.More(calls)
				outage(s, r)
			}
			r.More(calls)
			r.Check()
			if info := s.do("info", "replication").(string); !strings.Contains(info, "role:master") {
				t.Errorf("the server is not the one that was started: %s", info)
			}
		})
	}
}
