package node_test

import (
	"net"
	"testing"

	"github.com/quorate/quorate/node/nodetest"
)

// A new server requests the number of partitions from the cluster before it opens its store. If this takes long, the
// server logs it. In this test, the seed accepts the connection and never answers.
func TestStart_LogsThatItWaitsForASeed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log nodetest.Log
	nodetest.OpenLogged(t, nodetest.Member(t, "n1", 0, l.Addr().String()), &log)
	if !log.Has("the start waits for a node of the cluster", "join="+l.Addr().String(), "--partitions does not wait") {
		t.Errorf("the wait is not logged:\n%s", log.String())
	}
}
