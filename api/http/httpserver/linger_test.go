package httpserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
)

// refusing answers every request before it has read the body.
func refusing(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
}

// Most clients send the whole request before they read the answer. If the server reset the connection in the meantime,
// these clients would not get the answer.
func TestServer_AnswerReachesClientThatSendsFirst(t *testing.T) {
	server := servertest.Open(t, httpserver.Config{Handler: http.HandlerFunc(refusing)})
	const size = 20 << 20 // more than the buffers of a connection hold
	for name, c := range map[string]struct {
		head, body string
		status     int
	}{
		"a body that is not read": {fmt.Sprintf("Content-Length: %d\r\n", size), strings.Repeat("x", size), 413},
		"a body of unknown length": {"Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n", size) +
			strings.Repeat("x", size) + "\r\n0\r\n\r\n", 413},
		"a header above the limit": {"X: " + strings.Repeat("x", size) + "\r\n", "", 431},
	} {
		t.Run(name, func(t *testing.T) {
			conn := servertest.Send(t, server, "POST / HTTP/1.1\r\nHost: localhost\r\n"+c.head+"\r\n"+c.body)
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != c.status {
				t.Fatalf("%+v, %v", resp, err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close()
			if _, err := in.ReadByte(); err != io.EOF {
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
	if err := server.Close(t.Context()); err != nil { // waits for connections that net/http keeps open for a moment
		t.Error(err)
	}
}
