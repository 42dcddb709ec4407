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

// tds returns an answer of SQL Server in packets with the given number of bytes each.
func tds(size int, tokens string) string {
	var out strings.Builder
	for len(tokens) > 0 {
		part := tokens[:min(size, len(tokens))]
		tokens = tokens[len(part):]
		header := []byte{4, 0, 0, 0, 0, 0, 1, 0}
		if tokens == "" {
			header[1] = 1
		}
		binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(part)))
		out.Write(header)
		out.WriteString(part)
	}
	return out.String()
}

// Tokens of SQL Server.
const (
	done   = "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	login  = "\xad\x0c\x00\x01\x74\x00\x00\x04\x01x\x00\x10\x00\x00\x00"
	notice = "\x10\x00\x01\x00\x00\x00\x01\x10\x01\x00x\x00\x00\x00\x01\x00\x00\x00"

	// A column with integers, and one with texts. A row has a value for each.
	described = "\x81\x02\x00" + "\x00\x00\x00\x00\x01\x00\x26\x04\x00" +
		"\x00\x00\x00\x00\x01\x00\xe7\xff\xff\x09\x04\xd0\x00\x34\x01a\x00"
	chunked = "\x02\x05\x00" + "\x06\x00\x00\x00\x00\x00\x00\x00" + "\x04\x00\x00\x00abcd" +
		"\x02\x00\x00\x00ef" + "\x00\x00\x00\x00"
)

// checks returns answers of servers, and the kind of error that the checker finds in each.
func checks() map[string]struct {
	checker func() frames.Checker
	answer  string
	want    string
} {
	plain := func() frames.Checker { return frames.NewPostgreSQL(longest, false) }
	listening := func() frames.Checker { return frames.NewPostgreSQL(longest, true) }
	documents := func() frames.Checker { return frames.NewMongoDB() }
	tables := func() frames.Checker { return frames.NewTDS(longest, false) }
	signing := func() frames.Checker { return frames.NewTDS(longest, true) }
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
		"tokens":              {tables, tds(4000, login+described+"\xd1"+chunked+done), ""},
		"small packets":       {tables, tds(1, login+described+"\xd1"+chunked+done), ""},
		"several answers": {tables, tds(9, done) + tds(3000, described+strings.Repeat("\xd1"+chunked, 50)+
			done), ""},
		"rows with nulls": {tables, tds(7, described+"\xd2\x03\xd2\x00"+chunked+"\xd2\x02"+chunked[:3]+done), ""},
		"unknown length": {tables, tds(7, described+"\xd1\x01\x05\xfe"+strings.Repeat("\xff", 7)+"\x02\x00\x00\x00ab"+
			strings.Repeat("\x00", 4)+done), ""},
		"error and notice": {tables, tds(30, "\xaa"+notice+"\xab"+notice+done), ""},
		"transaction": {tables, tds(8, "\xe3\x0b\x00\x08\x0812345678\x00"+
			"\xe3\x0b\x00\x09\x00\x0812345678"+done), ""},
		"size of packets":   {tables, tds(8, "\xe3\x0b\x00\x04\x034\x000\x009\x00\x01x\x00"+done), broken},
		"collation":         {tables, tds(8, "\xe3\x08\x00\x07\x05abcde\x00"+done), ""},
		"redirection":       {tables, tds(8, "\xe3\x0c\x00\x14\x07\x00\x00\x39\x05\x01\x00x\x00\x00\x00"+done), ""},
		"result of browse":  {tables, tds(8, "\xa4\x02\x00ab\xa5\x01\x00a\xa9\x02\x00\x01\x00\x79abcd"+done), ""},
		"features":          {tables, tds(8, "\xae\x02\x03\x00\x00\x00abc\xff"+done), ""},
		"end with an error": {tables, tds(8, "\xfd\x01\x01"+done[3:]), ""},
		"sign-in tokens":    {signing, tds(8, "\xed\x03\x00abc") + tds(8, login+done), ""},

		"odd text": {tables, tds(50, described+"\xd1\x01\x05\x03\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00abc"+
			strings.Repeat("\x00", 4)+done), broken},
		"integer of 3 bytes": {tables, tds(50, described+"\xd1\x03\x05\x05\x05"), broken},
		"announced text": {tables, tds(50, described+"\xd1\x00\xff\xff\xff\x7f\x00\x00\x00\x00"+
			strings.Repeat("\x00", 4)+done), broken},
		"many columns": {tables, tds(50, "\x81\x41\x00"+
			strings.Repeat("\x00\x00\x00\x00\x00\x00\x30\x00", 65)+done), broken},
		"image":               {tables, tds(50, "\x81\x01\x00\x00\x00\x00\x00\x00\x00\x22"), broken},
		"encrypted column":    {tables, tds(50, "\x81\x01\x00\x00\x00\x00\x00\x00\x08\x30\x00"+done), broken},
		"row without columns": {tables, tds(50, "\xd1"+done), broken},
		"two ends":            {tables, tds(50, done+done), broken},
		"no end":              {tables, tds(50, login), broken},
		"empty packet":        {tables, "\x04\x01\x00\x08\x00\x00\x00\x00", broken},
		"packet of a client":  {tables, "\x03\x01\x00\x09\x00\x00\x00\x00\x00", broken},
		"endless answer": {tables, strings.Repeat("\x04\x00\x10\x00\x00\x00\x00\x00"+
			strings.Repeat("x", 4088), 1100), large},
		"sign-in token":       {tables, tds(8, "\xed\x03\x00abc"), broken},
		"sign-in information": {signing, tds(8, "\xee\x08\x00\x00\x00\xff\xff\xff\xff"), broken},
		"column encryption":   {tables, tds(8, "\xae\x04\x01\x00\x00\x00\x01\xff"+done), broken},
		"many errors":         {tables, tds(4000, strings.Repeat("\xaa"+notice, 1001)+done), broken},
		"long name of server": {tables, tds(50, "\xad\x07\x01\x01abcd\x7d"+strings.Repeat("x", 300)), broken},
		"longer change":       {tables, tds(8, "\xe3\x04\x00\x01\x00\x00\x00"+done), broken},
		"unknown change":      {tables, tds(8, "\xe3\x03\x00\x63\x00\x00"+done), broken},

		"no number fits": {documents, mongo(2013, 33, "r=a,s=b,i=99999999999999999999999"), broken},
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

func FuzzTDS(f *testing.F) {
	fuzzMessages(f, func() frames.Checker { return frames.NewTDS(longest, false) },
		func() frames.Checker { return frames.NewTDS(longest, true) })
}

func FuzzMongoDB(f *testing.F) {
	fuzzMessages(f, func() frames.Checker { return frames.NewMongoDB() })
}
