package remoteinvoke_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/remoteinvoke"
)

// scripted accepts connections, and answers the first request on each connection with text. The channel more receives
// the bytes that arrive after each answer.
func scripted(t *testing.T, l net.Listener, text string) (more <-chan string) {
	t.Helper()
	got := make(chan string, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(c)
			for {
				line, err := in.ReadString('\n')
				if err != nil || strings.TrimSpace(line) == "" {
					break
				}
			}
			_, _ = io.WriteString(c, text)
			rest, _ := io.ReadAll(in)
			got <- string(rest)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return got
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// followed sends a request over a new connection, reads the answer, and sends a second request with a token over the
// same connection. It returns the first answer and its body.
func followed(t *testing.T, n *node, first string) (answer *http.Response, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", n.api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	fmt.Fprint(conn, first)
	for answer == nil || answer.StatusCode == http.StatusEarlyHints {
		if answer, err = http.ReadResponse(in, nil); err != nil {
			t.Fatal(err)
		}
	}
	text = body(t, answer)
	fmt.Fprint(conn, "GET /v1.0/none HTTP/1.1\r\nHost: localhost\r\nDapr-Api-Token: secret\r\n\r\n")
	next, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("the second request on the connection: %v", err)
	}
	if got := body(t, next); next.StatusCode != http.StatusNotFound || strings.Contains(got, "forged") {
		t.Errorf("the second request on the connection is answered %d %s", next.StatusCode, got)
	}
	return answer, text
}

// hijacks returns answers with which a server tries to take over the connection of its caller.
func hijacks() []string {
	const forged = "\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nforged"
	return []string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x" + forged,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket, x" + forged,
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: x" + forged,
		"HTTP/1.1 101 Switching Protocols" + forged,
	}
}

const plainCall = "GET /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: localhost\r\n"

func TestSwitch_ThatWasNotRequestedDoesNotTakeOverTheConnection(t *testing.T) {
	for _, hijack := range hijacks() {
		for _, asked := range []string{"", "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
			w := newWorld(t)
			l := listen(t)
			leaked := scripted(t, l, hijack)
			b := w.start("b", "web", l.Addr().String(), nil)
			a := w.start("a", "shop", "", nil)
			<-leaked // the connection of the probe
			for _, from := range []*node{a, b} {
				answer, text := followed(t, from, plainCall+asked+"\r\n")
				if answer.StatusCode != http.StatusBadGateway || !strings.Contains(text, `"reason":"bad_answer"`) ||
					!strings.Contains(text, "switches") {
					t.Errorf("%q at %s: %d %s", hijack, from.name, answer.StatusCode, text)
				}
				if got := <-leaked; got != "" {
					t.Errorf("%q at %s: the application receives %q", hijack, from.name, got)
				}
			}
		}
	}
}

// impostors starts two nodes. The first one is returned and calls an application on the second one. The second one
// answers each call between nodes with text.
func impostors(t *testing.T, text string) (caller *node, leaked <-chan string) {
	t.Helper()
	w := newWorld(t)
	w.hooks = func(c *remoteinvoke.ServerConfig) {
		tunnels := c.Listener
		c.Listener = listen(t) // unused
		if leaked == nil {
			leaked = scripted(t, tunnels, text)
		}
	}
	w.start("b", "web", listen(t).Addr().String(), nil)
	return w.start("a", "shop", "", nil), leaked
}

func TestSwitch_OfAnotherNodeDoesNotTakeOverTheConnection(t *testing.T) {
	for _, hijack := range hijacks() {
		caller, leaked := impostors(t, hijack)
		answer, text := followed(t, caller, plainCall+"\r\n")
		if answer.StatusCode != http.StatusBadGateway || !strings.Contains(text, "the answer of node b was refused") {
			t.Errorf("%q: %d %s", hijack, answer.StatusCode, text)
		}
		if got := <-leaked; got != "" {
			t.Errorf("%q: the other node receives %q", hijack, got)
		}
	}
}

// refusals returns answers that must be refused, each with a part of the error text.
func refusals() map[string]string {
	many := strings.Repeat("a:\r\n", 2000)
	return map[string]string{
		"HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n":                              "no HTTP status",
		"HTTP/1.1 000 x\r\nContent-Length: 0\r\n\r\n":                              "no HTTP status",
		"HTTP/1.1 200 OK\r\n" + many + "\r\n":                                      "header fields",
		strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 2000):                             "header fields",
		"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 200<<10) + "\r\n\r\n":       "bytes or more",
		"HTTP/1.1 200 OK\r\nTrailer: " + strings.Repeat("x,", 20_000) + "\r\n\r\n": "header fields",
	}
}

func TestAnswers_ThatAreRefusedAre502(t *testing.T) {
	for text, want := range refusals() {
		w := newWorld(t)
		l := listen(t)
		scripted(t, l, text)
		b := w.start("b", "web", l.Addr().String(), nil)
		a := w.start("a", "shop", "", nil)
		impostor, _ := impostors(t, text)
		for name, from := range map[string]*node{"at its node": b, "at another": a, "of a node": impostor} {
			answer, err := client(t).Get(from.url("/v1.0/invoke/web/method/x"))
			if err != nil && strings.HasPrefix(text, "HTTP/1.1 103") {
				continue // the test client refuses the forwarded hints
			} else if err != nil {
				t.Fatal(err)
			}
			if got := body(t, answer); answer.StatusCode != http.StatusBadGateway || !strings.Contains(got, want) {
				t.Errorf("%.40q %s: %d %s", text, name, answer.StatusCode, got)
			}
		}
	}
}

// Headers that Connection names are not forwarded, although net/http hides the header Connection if it contains close.
func TestConnectionHeader_NamesWhatIsNotForwarded(t *testing.T) {
	const hop = "X-Hop: hidden\r\nX-Kept: kept\r\n"
	for name, lines := range map[string]string{
		"close first": "Connection: close, X-Hop\r\n", "close last": "Connection: X-Hop, Close\r\n",
		"two lines": "Connection: X-Hop\r\nConnection: close\r\n", "folded": "Connection: close,\r\n X-Hop\r\n",
	} {
		text := "HTTP/1.1 103 Early Hints\r\n" + lines + hop + "\r\nHTTP/1.1 200 OK\r\n" + lines + hop +
			"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n" + hop + "\r\n"
		w := newWorld(t)
		l := listen(t)
		scripted(t, l, text)
		b := w.start("b", "web", l.Addr().String(), nil)
		a := w.start("a", "shop", "", nil)
		impostor, _ := impostors(t, text)
		for at, from := range map[string]*node{"at its node": b, "at another": a, "of a node": impostor} {
			conn, err := net.Dial("tcp", from.api.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, plainCall+"Connection: close\r\n\r\n")
			all, err := io.ReadAll(conn)
			_ = conn.Close()
			if got := string(all); err != nil || strings.Count(got, "X-Kept: kept") != 3 ||
				strings.Contains(got, "hidden") || !strings.Contains(got, " 103 ") {
				t.Errorf("%s %s: %v\n%s", name, at, err, got)
			}
		}
	}
}

func TestInformational_AnswersAreNotSentOverHTTP10(t *testing.T) {
	a, b := pair(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "text")
	})
	for _, from := range []*node{a, b} {
		answer := exchange(t, from, "GET /v1.0/invoke/web/method/x HTTP/1.0\r\nHost: localhost\r\n\r\n")
		if text := body(t, answer); answer.StatusCode != http.StatusOK || text != "text" {
			t.Errorf("at %s: %d %q", from.name, answer.StatusCode, text)
		}
	}
}
