package peer_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
)

var update = flag.Bool("update", false, "rewrite the expected files")

func TestPreamble_RefusalHasReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newNetwork(true)
		start(t, net, "b", []peer.Method{echo("echo")}, identity("c", 5))
		start(t, net, "new", []peer.Method{echo("echo")}, identity("", 0))
		net.place("moved", net.places["b"])
		for _, c := range []struct {
			what    string
			from    peer.Identity
			to      string
			want    peer.Reason
			mention string
		}{
			{"another cluster", peer.Identity{Server: "a", Cluster: "d", Epoch: 5}, "b", peer.ReasonForeignCluster,
				`"d"`},
			{"no cluster yet", peer.Identity{Server: "a"}, "b", peer.ReasonUnformed, `"a"`},
			{"from before a rescue", peer.Identity{Server: "a", Cluster: "c", Epoch: 4}, "b", peer.ReasonOlderEpoch,
				"epoch 4"},
			{"of after a rescue", peer.Identity{Server: "a", Cluster: "c", Epoch: 6}, "b", peer.ReasonNewerEpoch,
				"epoch 6"},
			{"another server meant", peer.Identity{Server: "a", Cluster: "c", Epoch: 5}, "moved",
				peer.ReasonWrongServer, `"b"`},
			{"a copied directory", peer.Identity{Server: "b", Cluster: "c", Epoch: 5}, "b", peer.ReasonOwnID, "copied"},
			{"to one without a cluster", peer.Identity{Server: "a", Cluster: "c", Epoch: 5}, "new",
				peer.ReasonUnformed, `"new"`},
		} {
			a := start(t, net, "caller", nil, func(_ *peer.Options, n *node) { n.self = c.from })
			_, err := a.Client().Call(context.Background(), c.to, "echo", nil)
			wantCode(t, err, fault.Unavailable)
			wantReason(t, err, c.want)
			if err == nil || !strings.Contains(err.Error(), c.mention) || !strings.Contains(err.Error(), "(") {
				t.Errorf("%s: the error names neither %s nor a fix: %v", c.what, c.mention, err)
			}
			if got := a.metric(t, "refused_total", "direction", "outbound", "reason", c.want.String()); got != 1 {
				t.Errorf("%s: counted %v", c.what, got)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPreamble_RefusesGroupThatDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(true)
		b := start(t, n, "b", nil)
		if _, err := b.Raft(7); err != nil {
			t.Fatal(err)
		}
		for group, want := range map[uint32]peer.Reason{7: 0, 8: peer.ReasonUnknownGroup} {
			c, err := n.dial(context.Background(), b.addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(peer.Hello("raft", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b", group))
			_, err = peer.ReadAnswer(c)
			if got, _ := peer.RefusedBecause(err); got != want {
				t.Errorf("group %d: %v", group, err)
			}
			_ = c.Close()
		}
	})
}

func TestPreamble_InvalidIsCutAndCounted(t *testing.T) {
	net := newNetwork(false)
	b := start(t, net, "b", nil)
	good := peer.Hello("call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b", 0)
	spoil := func(at int, octet byte) []byte {
		out := bytes.Clone(good)
		out[at] = octet
		return out
	}
	for name, c := range map[string]struct {
		send []byte
		want peer.Reason // 0 = no answer at all
	}{
		"http":            {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 0},
		"other version":   {spoil(4, 9), peer.ReasonVersion},
		"too long":        {spoil(5, 0xff), peer.ReasonMalformed},
		"unknown kind":    {spoil(7, 0x7f), peer.ReasonMalformed},
		"long cluster":    {spoil(16, 0xff), peer.ReasonMalformed},
		"more than it":    {append(spoil(6, good[6]+1), 0), peer.ReasonMalformed},
		"less than it":    {spoil(6, good[6]-1), peer.ReasonMalformed},
		"no caller":       {peer.Hello("call", peer.Identity{Cluster: "c"}, "b", 0), peer.ReasonMalformed},
		"no server meant": {peer.Hello("call", peer.Identity{Server: "a", Cluster: "c"}, "", 0), peer.ReasonMalformed},
	} {
		c2, err := net.tcp(b.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c2.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c2.Write(c.send); err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(c2)
		_ = c2.Close()
		_, err = peer.ReadAnswer(bytes.NewReader(raw))
		if got, _ := peer.RefusedBecause(err); got != c.want || (c.want == 0) != (len(raw) == 0) {
			t.Errorf("%s: answered %q: %v", name, raw, err)
		}
	}
	eventually(t, "everything is counted", func() bool {
		return b.metric(t, "refused_total", "reason", "malformed") == 8 &&
			b.metric(t, "refused_total", "reason", "version") == 1
	})
}

func TestPreamble_WireFormatIsStable(t *testing.T) {
	self := peer.Identity{Server: "node-1.abc", Cluster: "cluster", Epoch: 3}
	refusal := &peer.Refusal{Reason: peer.ReasonForeignCluster,
		Err: &fault.Error{Code: fault.Denied, Op: "peer.accept", Msg: "foreign", Hint: "check"}}
	var out strings.Builder
	for _, e := range []struct {
		name string
		b    []byte
	}{
		{"hello raft 300", peer.Hello("raft", self, "node-2.def", 300)},
		{"hello snapshot 0", peer.Hello("snapshot", self, "node-2.def", 0)},
		{"hello call", peer.Hello("call", self, "node-2.def", 0)},
		{"hello join", peer.Hello("join", peer.Identity{Server: "node-1.abc"}, "node-2.def", 0)},
		{"accept", peer.AcceptAnswer(self)},
		{"refuse", peer.RefuseAnswer(refusal)},
		{"open", peer.OpenFrame(1, "method", 1500*time.Millisecond, 5, []byte("hello"))},
		{"open part", peer.OpenFrame(2, "method", 0, 100000, []byte("hello"))},
		{"data", peer.DataFrame(2, []byte("more"), false)},
		{"data fin", peer.DataFrame(2, nil, true)},
		{"answer", peer.AnswerFrame(1, []byte("world"))},
		{"fail", peer.FailFrame(1, fault.New(fault.Conflict, "op", "msg"))},
		{"reset", peer.ResetFrame(1)},
		{"window", peer.WindowFrame(1, 65536)},
		{"ping", peer.PingFrame()},
		{"go away", peer.GoAwayFrame(9)},
	} {
		out.WriteString(e.name + "\n" + hex.Dump(e.b) + "\n")
	}
	golden := filepath.Join("testdata", "wire.golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("older nodes would not understand this (-old +new):\n%s", diff)
	}
}

func FuzzPreamble(f *testing.F) {
	id := peer.Identity{Server: "a", Cluster: "c", Epoch: 1}
	f.Add(peer.Hello("raft", id, "b", 1<<31))
	f.Add(peer.AcceptAnswer(id))
	f.Add(peer.RefuseAnswer(&peer.Refusal{Reason: peer.ReasonBusy, Err: fault.New(fault.Unavailable, "x", "y")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		again, err := peer.ReadHello(r)
		if read := len(b) - r.Len(); read > peer.MaxHello {
			t.Fatalf("%d bytes were read", read)
		}
		if err == nil && len(again) > len(b)-r.Len() {
			t.Fatalf("read %x, which means %x", b[:len(b)-r.Len()], again)
		}
		if self, err := peer.ReadAnswer(bytes.NewReader(b)); err == nil &&
			!bytes.HasPrefix(b, peer.AcceptAnswer(self)) {
			t.Fatalf("read %x as %+v", b, self)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add(peer.OpenFrame(1, "method", time.Second, 5, []byte("hello")))
	f.Add(append(peer.AnswerFrame(1, []byte("x")), peer.FailFrame(2, io.EOF)...))
	f.Add(peer.DataFrame(2, make([]byte, 100), true))
	f.Fuzz(func(t *testing.T, b []byte) {
		if frames, carried, _ := peer.DecodeAll(b); carried > len(b) || frames > len(b) {
			t.Fatalf("%d frames with %d bytes out of %d", frames, carried, len(b))
		}
	})
}

// FuzzCallee sends arbitrary bytes after a valid preamble. The server must keep serving others, and must remove the
// connection.
func FuzzCallee(f *testing.F) {
	f.Add(peer.OpenFrame(1, "echo", time.Second, 5, []byte("hello")))
	f.Add(append(peer.OpenFrame(1, "echo", 0, 10, nil), peer.ResetFrame(1)...))
	f.Add(append(peer.OpenFrame(1, "echo", 0, 100000, []byte("part")), peer.DataFrame(1, []byte("more"), true)...))
	f.Add(append(peer.WindowFrame(1, 1<<20), peer.PingFrame()...))
	f.Add(peer.GoAwayFrame(3))
	net := newNetwork(true)
	b := start(f, net, "b", []peer.Method{echo("echo")})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := net.dial(context.Background(), b.addr)
		if err != nil {
			t.Fatal(err)
		}
		handshake(t, c, "call", peer.Identity{Server: "a", Cluster: "c", Epoch: 1}, "b")
		drained := make(chan struct{})
		go func() { defer close(drained); _, _ = io.Copy(io.Discard, c) }()
		_, _ = c.Write(sent)
		_ = c.Close()
		<-drained
		eventually(t, "the connection is forgotten", func() bool {
			return b.metric(t, "connections") == 0 && b.metric(t, "rpc_in_flight") == 0
		})
	})
}
