package frames

import (
	"bytes"
	"strconv"
	"strings"
)

// request is a command whose reply has not ended.
type request struct {
	sentinel bool // the command is SENTINEL
	address  bool // the command is SENTINEL GET-MASTER-ADDR-BY-NAME
}

// requests tracks the commands on a connection to Redis whose replies have not ended.
type requests struct {
	waiting    []request
	subscribed bool // a command subscribes, so that messages come without a request

	line  []byte
	left  int64 // bytes of the current argument, with its line end
	args  int   // arguments of the current command that are missing
	words []string
	word  []byte // begin of the current argument
}

// maxWord is how many bytes of an argument or line are kept. Longer arguments and lines are not recognized.
const maxWord = 32

// sent parses the bytes p, which the client sends to the server. It returns false if they do not have the form of
// commands.
func (q *requests) sent(p []byte) bool {
	for len(p) > 0 {
		if q.left > 0 {
			n := int(min(q.left, int64(len(p))))
			if len(q.words) < 2 {
				q.word = append(q.word, p[:min(n, max(0, maxWord+2-len(q.word)))]...)
			}
			if p, q.left = p[n:], q.left-int64(n); q.left == 0 {
				q.argument()
			}
			continue
		}
		at := bytes.IndexByte(p, '\n')
		if at < 0 || len(q.line)+at > maxWord {
			q.line = append(q.line, p[:min(len(p), maxWord+1)]...)
			return at < 0 && len(q.line) <= maxWord
		}
		q.line = append(q.line, p[:at]...)
		p = p[at+1:]
		text := strings.TrimSuffix(string(q.line), "\r")
		q.line = q.line[:0]
		if text == "" {
			return false
		}
		n, err := strconv.ParseInt(text[1:], 10, 63)
		switch {
		case err != nil || n < 0:
			return false
		case text[0] == '*' && q.args == 0 && n > 0 && n < 1<<31:
			q.args = int(n)
		case text[0] == '$' && q.args > 0:
			q.left = n + 2
		default:
			return false
		}
	}
	return true
}

// argument handles the end of an argument.
func (q *requests) argument() {
	if len(q.words) < 2 {
		q.words = append(q.words, strings.ToLower(strings.TrimSuffix(string(q.word), "\r\n")))
		q.word = q.word[:0]
	}
	if q.args--; q.args > 0 {
		return
	}
	r := request{sentinel: q.words[0] == "sentinel"}
	r.address = r.sentinel && len(q.words) > 1 && q.words[1] == "get-master-addr-by-name"
	q.subscribed = q.subscribed || strings.HasSuffix(q.words[0], "subscribe")
	q.words = q.words[:0]
	if !q.subscribed { // a subscriber does not match replies with requests
		q.waiting = append(q.waiting, r)
	}
}
