package node_test

import (
	"bytes"
	"runtime/pprof"
	"testing"
)

// TestNode_UndeclaredStoresHaveNoGoroutine starts a node whose program contains the clients of all outside stores.
// It checks that none of these clients runs.
func TestNode_UndeclaredStoresHaveNoGoroutine(t *testing.T) {
	ready(t, open(t, config(t)))
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(stacks.Bytes(), []byte("quorate/raftfsm")) {
		t.Fatal("the stacks do not show the node")
	}
	for _, client := range []string{"microsoft/go-mssqldb", "database/sql.", "redis/go-redis", "jackc/pgx",
		"mongo-driver", "azcosmos", "component/state/redis", "component/state/postgresql", "component/state/mongodb",
		"component/state/sqlserver", "component/state/azure"} {
		if bytes.Contains(stacks.Bytes(), []byte(client)) {
			t.Errorf("a goroutine of %s runs although no component needs it", client)
		}
	}
}
