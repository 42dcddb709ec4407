package frames_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/frames"
)

// pg returns a message of PostgreSQL that announces size bytes.
func pg(kind byte, size int, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(size)+4)) + body
}

func whole(kind byte, n int) string { return pg(kind, n, strings.Repeat("x", n)) }

// mongo returns a message of MongoDB that announces size bytes behind its header.
func mongo(kind uint32, size int, body string) string {
	header := binary.LittleEndian.AppendUint32(nil, uint32(size)+16)
	header = binary.LittleEndian.AppendUint64(header, 1)
	return string(binary.LittleEndian.AppendUint32(header, kind)) + body
}

func message(n int) string { return mongo(2013, n, strings.Repeat("x", n)) }

// checks are streams, and the kind of error that they cause.
func checks() map[string]struct {
	checker func() frames.Checker
	answer  string
	want    string
} {
	plain := func() frames.Checker { return frames.NewPostgreSQL(longest, false) }
	listening := func() frames.Checker { return frames.NewPostgreSQL(longest, true) }
	documents := func() frames.Checker { return frames.NewMongoDB() }
	type check = struct {
		checker func() frames.Checker
		answer  string
		want    string
	}
	return map[string]check{
		"rows":                     {plain, whole('T', 100) + whole('D', 70_000) + whole('D', 0) + whole('Z', 1), ""},
		"largest row":              {plain, whole('D', longest), ""},
		"parameters":               {plain, whole('S', 30) + whole('S', 40) + whole('N', 50), ""},
		"long notices":             {listening, whole('Z', 1) + strings.Repeat(whole('A', 60_000), 100), ""},
		"large row":                {plain, pg('D', 3*longest, ""), large},
		"rows together":            {plain, strings.Repeat(whole('D', longest-100), 3), large},
		"large description":        {plain, pg('T', longest+1, ""), large},
		"negative length":          {plain, pg('D', -5, ""), broken},
		"no length":                {plain, pg('D', -4, ""), broken},
		"unrequested notification": {plain, whole('A', 10), broken},
		"waiting listener":         {listening, strings.Repeat(whole('A', 60_000), 100), large},
		"endless parameters":       {plain, strings.Repeat(whole('S', 1000), 300), large},
		"endless notices":          {plain, strings.Repeat(whole('N', 1000), 1100), large},

		"messages": {documents, strings.Repeat(message(30)+message(0), 5) + message(100_000) + mongo(1, 3, "abc"),
			""},
		"many iterations":     {documents, mongo(2013, 26, "r=a,s=b,i=10000000,i=15000"), ""},
		"late iterations":     {documents, strings.Repeat(message(1), 4) + mongo(2013, 15, ",i=999999999999"), ""},
		"huge message":        {documents, mongo(2013, 48_000_000, ""), large},
		"short message":       {documents, mongo(2013, -1, ""), broken},
		"negative message":    {documents, mongo(2013, -1000, ""), broken},
		"compressed":          {documents, mongo(2012, 10, "0123456789"), broken},
		"too many iterations": {documents, mongo(2013, 18, "r=a,s=b,i=10000001"), broken},
		"no number fits":      {documents, mongo(2013, 33, "r=a,s=b,i=99999999999999999999999"), broken},
	}
}

func TestMessages(t *testing.T) {
	for name, c := range checks() {
		for _, piece := range []int{1, 13, 1 << 20} {
			got, err := received(t, c.checker(), "x", c.answer, piece)
			if kind(err) != c.want || c.want == "" && got != c.answer {
				t.Errorf("%s, %d bytes at once: %d of %d bytes, %v, want %q", name, piece, len(got), len(c.answer), err,
					c.want)
			}
		}
	}
}

// fuzzMessages checks that the size of the pieces in which bytes arrive does not matter.
func fuzzMessages(f *testing.F, checkers ...func() frames.Checker) {
	for _, c := range checks() {
		if len(c.answer) < 2000 {
			f.Add([]byte(c.answer), byte(3), byte(0))
		}
	}
	f.Fuzz(func(t *testing.T, answer []byte, piece, which byte) {
		checker := checkers[int(which)%len(checkers)]
		one, failed := received(t, checker(), "x", string(answer), 1<<20)
		parts, err := received(t, checker(), "x", string(answer), 1+int(piece))
		if !strings.HasPrefix(string(answer), one) || !strings.HasPrefix(string(answer), parts) {
			t.Errorf("%q became %q and %q", answer, one, parts)
		}
		// The client may see a part of the header of a message that is held.
		differ := max(len(one), len(parts)) - min(len(one), len(parts))
		if (failed == nil) != (err == nil) || failed == nil && differ > 16 {
			t.Errorf("%q at once: %q, %v; in parts: %q, %v", answer, one, failed, parts, err)
		}
	})
}

func FuzzPostgreSQL(f *testing.F) {
	fuzzMessages(f, func() frames.Checker { return frames.NewPostgreSQL(longest, false) },
		func() frames.Checker { return frames.NewPostgreSQL(longest, true) })
}

func FuzzMongoDB(f *testing.F) {
	fuzzMessages(f, func() frames.Checker { return frames.NewMongoDB() })
}
