// Package uppercase implements the middleware middleware.http.uppercase, which changes the letters in request bodies to
// upper case. Users can use it to test whether a middleware pipeline is in use.
//
// The package owns a reader that changes the bytes of a body while they are read. It has no goroutines.
package uppercase

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/quorate/quorate/component"
)

// Type is the component type.
const Type = "middleware.http.uppercase"

// Fields declares the metadata.
func Fields() []component.Field {
	return []component.Field{{Name: "direction", Default: "request", Check: func(text string) error {
		if !strings.EqualFold(text, "request") {
			return errors.New("is not request: bodies of answers cannot be changed")
		}
		return nil
	}}}
}

// Upper changes request bodies. It is safe for concurrent use.
type Upper struct{}

// Filter implements middleware.Filter. It changes the ASCII letters a to z to upper case while the body is read. All
// other bytes and the length of the body stay the same.
func (Upper) Filter(r *http.Request) error {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = body{r.Body}
	}
	return nil
}

type body struct{ io.ReadCloser }

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for i, c := range p[:n] {
		if 'a' <= c && c <= 'z' {
			p[i] = c - 'a' + 'A'
		}
	}
	return n, err
}
