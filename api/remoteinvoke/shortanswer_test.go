package remoteinvoke_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

func TestInvoke_AnswerShorterThanAnnounced(t *testing.T) {
	a, b := pair(t, func(w http.ResponseWriter, r *http.Request) {
		size, sent := 999, `"ok"`
		switch r.URL.Path {
		case "/large":
			size = 1 << 20
		case "/none":
			sent = ""
		}
		w.Header().Set("Content-Length", strconv.Itoa(size))
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(sent)) // net/http then closes the connection
	})
	for _, from := range []*node{a, b} {
		answer, err := client(t).Get(from.url("/v1.0/invoke/web/method/small"))
		if err != nil {
			t.Fatal(err)
		}
		if text := body(t, answer); answer.StatusCode != http.StatusAccepted || text != `"ok"` ||
			answer.ContentLength != 4 {
			t.Errorf("at %s: %d %q, length %d", from.name, answer.StatusCode, text, answer.ContentLength)
		}
		if status, text := get(t, from, "web/method/none"); status != http.StatusInternalServerError ||
			!strings.Contains(text, "ERR_DIRECT_INVOKE") {
			t.Errorf("at %s: an answer without any of its body: %d %q", from.name, status, text)
		}
		answer, err = client(t).Get(from.url("/v1.0/invoke/web/method/large"))
		if err == nil {
			_, err = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
		if err == nil && answer.StatusCode == http.StatusAccepted {
			t.Errorf("at %s: a large answer that was cut looks complete", from.name)
		}
		head, err := client(t).Head(from.url("/v1.0/invoke/web/method/small"))
		if err != nil {
			t.Fatal(err)
		}
		_ = head.Body.Close()
		if head.StatusCode != http.StatusAccepted || head.ContentLength != 999 {
			t.Errorf("at %s: HEAD: %d, length %d", from.name, head.StatusCode, head.ContentLength)
		}
	}
}

func TestInvoke_AnswerWithoutItsBodyDuringUpload(t *testing.T) {
	gone := make(chan struct{}, 1)
	a, b := pair(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 1))
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n"))
		_ = conn.Close()
		gone <- struct{}{}
	})
	for _, from := range []*node{a, b} {
		upload, write := io.Pipe()
		go func() {
			_, _ = write.Write([]byte("x"))
			<-gone
			_ = write.Close()
		}()
		answer, err := client(t).Post(from.url("/v1.0/invoke/web/method/upload"), "text/plain", upload)
		if err != nil {
			t.Fatal(err)
		}
		if text := body(t, answer); answer.StatusCode != http.StatusInternalServerError ||
			!strings.Contains(text, "ERR_DIRECT_INVOKE") {
			t.Errorf("at %s: %d %q", from.name, answer.StatusCode, text)
		}
	}
}
