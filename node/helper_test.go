package node_test

import (
	"net/http"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// Short names for the functions of package nodetest, because most lines of these tests use them.

const patience = testutil.Patience

type record = nodetest.Log

func poll(t testing.TB, check func() error) { t.Helper(); nodetest.Poll(t, check) }
func free() node.Port                       { return nodetest.AnyPort() }
func freePort(t testing.TB) int             { t.Helper(); return nodetest.SparePort(t) }
func config(t testing.TB) node.Config       { t.Helper(); return nodetest.Config(t) }
func deps(t testing.TB) node.Deps           { return nodetest.Deps(t) }
func closeNode(t testing.TB, n *node.Node)  { t.Helper(); nodetest.Close(t, n) }
func ready(t testing.TB, n *node.Node)      { t.Helper(); nodetest.Ready(t, n) }

func open(t testing.TB, c node.Config) *node.Node { t.Helper(); return nodetest.Open(t, c) }

func resources(t testing.TB, files map[string]string) []string {
	t.Helper()
	return nodetest.Resources(t, files)
}

func store(name, typ, metadata string) string { return nodetest.Store(name, typ, metadata) }

func tokenFile(t testing.TB, path string, tokens ...trust.Token) string {
	t.Helper()
	return nodetest.TokenFile(t, path, tokens...)
}

func ask(t testing.TB, n *node.Node, method, path, body string) (int, string, http.Header) {
	t.Helper()
	return nodetest.Ask(t, n, method, path, body)
}

func askAt(t testing.TB, addr, method, path, body, token string) (int, string) {
	t.Helper()
	code, answer, _ := nodetest.AskAt(t, addr, method, path, body, token)
	return code, answer
}

func save(t testing.TB, n *node.Node, key, value string) (int, string) {
	t.Helper()
	return nodetest.Save(t, n, key, value)
}

func status(t testing.TB, n *node.Node) schema.NodeStatus { t.Helper(); return nodetest.Status(t, n) }

func membersOf(t testing.TB, n *node.Node) map[string]schema.MemberStatus {
	t.Helper()
	return nodetest.Members(t, n)
}

func member(t testing.TB, id string, expect int, seeds ...string) node.Config {
	t.Helper()
	return nodetest.Member(t, id, expect, seeds...)
}

func beside(t testing.TB, id string, seeds ...string) node.Config {
	t.Helper()
	return nodetest.Sidecar(t, id, seeds...)
}

func three(t testing.TB) ([]*node.Node, []node.Config) { t.Helper(); return nodetest.Three(t) }

func threeWith(t testing.TB, change func(*node.Config)) ([]*node.Node, []node.Config) {
	t.Helper()
	return nodetest.ThreeWith(t, change)
}

func voters(t testing.TB, n *node.Node, want int) { t.Helper(); nodetest.Voters(t, n, want) }
func leads(t testing.TB, nodes []*node.Node) int  { t.Helper(); return nodetest.Leader(t, nodes) }
