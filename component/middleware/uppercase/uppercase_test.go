package uppercase_test

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware/uppercase"
)

func TestUpper_ChangesLettersAndKeepsLength(t *testing.T) {
	const sent = "{\"a\": \"zß\x00é9[`{\"}"
	r := httptest.NewRequest("POST", "/", iotest.OneByteReader(strings.NewReader(sent)))
	if err := (uppercase.Upper{}).Filter(r); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r.Body)
	if want := "{\"A\": \"Zß\x00é9[`{\"}"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestFields_RefuseAnswers(t *testing.T) {
	for direction, ok := range map[string]bool{"request": true, "Request": true, "response": false, "both": false} {
		m := component.Metadata{{Name: "direction", Value: direction}}
		if _, _, err := m.Check(component.Pos{}, "a", uppercase.Fields()); (err == nil) != ok {
			t.Errorf("%s: %v", direction, err)
		}
	}
}
