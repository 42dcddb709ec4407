package frames_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/frames"
)

const longest = 1 << 20

// The kinds of errors.
const large, broken = "too large", "malformed"

// kind returns the kind of an error of a check, or "" for any other error and for nil.
func kind(err error) string {
	e, ok := errors.AsType[*frames.Error](err)
	switch {
	case !ok:
		return ""
	case e.TooLarge:
		return large
	}
	return broken
}

// command returns a command as clients send it.
func command(words ...string) string {
	var b strings.Builder
	b.WriteString("*" + strconv.Itoa(len(words)) + "\r\n")
	for _, w := range words {
		b.WriteString("$" + strconv.Itoa(len(w)) + "\r\n" + w + "\r\n")
	}
	return b.String()
}

// stream is a net.Conn from which the bytes of a server are read in pieces.
type stream struct {
	net.Conn
	from  io.Reader
	piece int // most bytes of one read
}

func (s *stream) Read(p []byte) (int, error) { return s.from.Read(p[:min(len(p), s.piece)]) }

func (s *stream) Write(p []byte) (int, error) { return len(p), nil }

// received sends a request through the checker c. It returns what the client can read of the answer, and the error of
// the check.
func received(t testing.TB, c frames.Checker, request, answer string, piece int) (string, error) {
	t.Helper()
	conn := frames.Wrap(&stream{from: strings.NewReader(answer), piece: piece}, c)
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, err := io.CopyBuffer(&out, struct{ io.Reader }{conn}, make([]byte, 100))
	return out.String(), err
}

func text(n int) string { return "$" + strconv.Itoa(n) + "\r\n" + strings.Repeat("x", n) + "\r\n" }

func TestRESP_PassesReplies(t *testing.T) {
	for _, c := range []struct{ request, answer string }{
		{command("GET", "k"), text(5)},
		{command("GET", "k"), text(70_000)},
		{command("GET", "k"), text(longest)},
		{command("GET", "k"), "$-1\r\n"},
		{command("GET", "k"), "-WRONGTYPE " + strings.Repeat("x", 60_000) + "\r\n"},
		{command("HMGET", "k", "a", "b"), "*3\r\n" + text(70_000) + "$-1\r\n:5\r\n"},
		{command("GET", "a") + command("GET", "b"), text(100_000) + text(200_000)},
		{command("SET", "k", strings.Repeat("y", 100_000)) + command("GET", "k"), "+OK\r\n" + text(100_000)},
		{command("X"), "%1\r\n+a\r\n*2\r\n,1.5\r\n(123\r\n"},
		{command("X"), "|1\r\n+ttl\r\n:5\r\n~2\r\n#t\r\n_\r\n"},
		{command("X"), "*2\r\n|1\r\n+a\r\n*0\r\n$1\r\nx\r\n=5\r\ntxt:a\r\n"},
		{command("X"), "!5\r\nERR x\r\n"},
		{command("X"), ">2\r\n+invalidate\r\n*0\r\n*-1\r\n"},
		{command("X"), "*0\r\n"},
		{command("PSUBSCRIBE", "a*"), "*3\r\n$10\r\npsubscribe\r\n$2\r\na*\r\n:1\r\n" +
			"*4\r\n$8\r\npmessage\r\n$2\r\na*\r\n$2\r\nab\r\n$1\r\nx\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n+PONG\r\n"},
		{command("subscribe", "+switch-master"), ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n" +
			">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$11\r\nm a 1 b 222\r\n"},
		{command("sentinel", "get-master-addr-by-name", "m"), "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n"},
		{command("sentinel", "get-master-addr-by-name", "m"), "*-1\r\n"},
		{command("sentinel", "sentinels", "m"), "*1\r\n%2\r\n+ip\r\n+::1\r\n+port\r\n+1\r\n"},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			got, err := received(t, frames.NewRESP(longest), c.request, c.answer, piece)
			if got != c.answer || err != nil {
				t.Errorf("%.60q, %d bytes at once: %d of %d bytes, %v", c.answer, piece, len(got), len(c.answer), err)
			}
		}
	}
}

func TestRESP_RefusesHostileReplies(t *testing.T) {
	get := command("GET", "k")
	address := command("SENTINEL", "get-master-addr-by-name", "m")
	subscribe := command("psubscribe", "*")
	for name, c := range map[string]struct {
		request, answer string
		want            string
	}{
		"huge string":          {get, "$2000000000\r\n", large},
		"string above limit":   {get, text(longest + 1), large},
		"string of all bytes":  {get, "$9223372036854775807\r\n", large},
		"overflow":             {get, "$99999999999999999999\r\n", broken},
		"negative":             {get, "$-2\r\n", broken},
		"streamed string":      {get, "$?\r\n;1\r\na\r\n;0\r\n", broken},
		"streamed array":       {get, "*?\r\n+a\r\n.\r\n", broken},
		"huge array":           {get, "*2147483647\r\n", large},
		"huge map":             {get, "%400000\r\n", large},
		"many arrays":          {get, "*3\r\n*300000\r\n" + strings.Repeat(":1\r\n", 300_000) + "*300000\r\n", large},
		"nested arrays":        {get, strings.Repeat("*1\r\n", 1000), large},
		"nested attributes":    {get, strings.Repeat("|1\r\n", 1000), large},
		"endless attributes":   {get, strings.Repeat("|0\r\n", 1000), large},
		"endless line":         {get, "+" + strings.Repeat("x", 100_000), large},
		"endless length":       {get, "$" + strings.Repeat("1", 100_000), large},
		"endless pushes":       {get, strings.Repeat(">1\r\n"+text(60_000), 50), large},
		"sum":                  {get + get, text(longest) + "*2\r\n" + text(longest) + text(longest), large},
		"empty line":           {get, "\r\n", broken},
		"line without CR":      {get, "+OK\n", broken},
		"unknown type":         {get, "?5\r\n", broken},
		"no request":           {"", "+OK\r\n", broken},
		"second reply":         {get, "+OK\r\n+OK\r\n", broken},
		"address of one":       {address, "*1\r\n+a\r\n", broken},
		"address of none":      {address, "~0\r\n", broken},
		"pushed address":       {address, ">1\r\n+a\r\n", broken},
		"large address":        {address, "*2\r\n+a\r\n$1100000\r\n", large},
		"empty message":        {subscribe, "*0\r\n", broken},
		"message without text": {subscribe, "*1\r\n:1\r\n", broken},
		"short message":        {subscribe, "*2\r\n+message\r\n+a\r\n", broken},
		"message of numbers":   {subscribe, "*4\r\n+pmessage\r\n:1\r\n+a\r\n+a\r\n", broken},
		"message of null":      {subscribe, "*3\r\n+message\r\n$-1\r\n+a\r\n", broken},
		"array of numbers":     {subscribe, "*3\r\n+message\r\n+a\r\n*1\r\n:1\r\n", broken},
		"subscription of text": {subscribe, "*3\r\n+psubscribe\r\n+a\r\n+1\r\n", broken},
		"short switch":         {subscribe, "*3\r\n+message\r\n+" + "+switch-master\r\n+m a 1\r\n", broken},
		"message without end": {subscribe, "*3\r\n+message\r\n+a\r\n*500\r\n" + strings.Repeat(text(60_000), 20),
			large},
	} {
		for _, piece := range []int{1, 1 << 20} {
			got, err := received(t, frames.NewRESP(longest), c.request, c.answer, piece)
			if kind(err) != c.want {
				t.Errorf("%s, %d bytes at once: %v, want %s", name, piece, err, c.want)
			}
			if len(got) > 2*longest+1000 {
				t.Errorf("%s: the client saw %d bytes", name, len(got))
			}
		}
	}
}

// TestRESP_HoldsALongStringUntilItIsComplete checks that a client does not see the length of a long string before the
// string has arrived, because the client allocates that length.
func TestRESP_HoldsALongStringUntilItIsComplete(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	conn := frames.Wrap(client, frames.NewRESP(longest))
	go func() {
		_, _ = server.Read(make([]byte, 100))
		_, _ = server.Write([]byte("*2\r\n$3\r\nabc\r\n" + text(longest)[:longest]))
		_ = server.Close()
	}()
	if _, err := conn.Write([]byte(command("GET", "k"))); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if string(got) != "*2\r\n$3\r\nabc\r\n" || err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestRESP_SubscriberReceivesWithoutEnd checks that a subscriber can receive any number of messages, and send pings
// meanwhile.
func TestRESP_SubscriberReceivesWithoutEnd(t *testing.T) {
	message := "*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\na\r\n" + text(50_000)
	c := frames.NewRESP(longest)
	c.Sent([]byte(command("psubscribe", "*")))
	for range 100 {
		if held, err := c.Check([]byte(message), len(message)); held != 0 || err != nil {
			t.Fatal(held, err)
		}
		c.Sent([]byte(command("ping")))
	}
}

func FuzzRESP(f *testing.F) {
	for _, answer := range []string{"*2\r\n$1\r\na\r\n:1\r\n", "%1\r\n+a\r\n|1\r\n+b\r\n+c\r\n#t\r\n", "$70000\r\n",
		">1\r\n+a\r\n"} {
		f.Add([]byte(answer), byte(3), byte(0))
	}
	f.Add([]byte("*3\r\n+message\r\n+a\r\n+b\r\n"), byte(1), byte(1))
	f.Add([]byte("*2\r\n+a\r\n+b\r\n"), byte(1), byte(2))
	requests := []string{command("get", "k"), command("psubscribe", "*"),
		command("sentinel", "get-master-addr-by-name", "m")}
	f.Fuzz(func(t *testing.T, answer []byte, piece, kind byte) {
		request := requests[int(kind)%len(requests)]
		whole, failed := received(t, frames.NewRESP(1000), request, string(answer), 1<<20)
		parts, err := received(t, frames.NewRESP(1000), request, string(answer), 1+int(piece))
		if !bytes.HasPrefix(answer, []byte(whole)) || !bytes.HasPrefix(answer, []byte(parts)) {
			t.Errorf("%q became %q and %q", answer, whole, parts)
		}
		if (failed == nil) != (err == nil) || failed == nil && whole != parts {
			t.Errorf("%q at once: %q, %v; in parts: %q, %v", answer, whole, failed, parts, err)
		}
	})
}

// FuzzRESPSent checks that no bytes of a client make the checker panic.
func FuzzRESPSent(f *testing.F) {
	f.Add([]byte(command("get", "k")+command("set", "k", "v")), byte(3))
	f.Add([]byte("*1\r\n$-1\r\n"), byte(1))
	f.Fuzz(func(t *testing.T, sent []byte, piece byte) {
		at := 1 + int(piece)
		c := frames.NewRESP(1000)
		for part := sent; len(part) > 0; {
			n := min(at, len(part))
			c.Sent(part[:n])
			part = part[n:]
		}
		_, _ = c.Check([]byte("+OK\r\n"), 5)
	})
}
