package node_test

import (
	"net"
	"testing"

	"github.com/quorate/quorate/node/nodetest"
)

// A new server asks the cluster for its number of partitions before it opens anything. The log says so if that takes
// long, here because the seed accepts the connection and never answers.
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
