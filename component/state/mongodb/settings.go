package mongodb

import (
	"cmp"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Fields returns the metadata fields of the component type. Names and defaults are the same as in Dapr.
func Fields() []component.Field {
	return []component.Field{
		{Name: "connectionString", Secret: true},
		{Name: "host"},
		{Name: "server"},
		{Name: "username"},
		{Name: "password", Secret: true},
		{Name: "databaseName", Default: "daprStore"},
		{Name: "collectionName", Default: "daprCollection"},
		{Name: "params"},
		{Name: "writeconcern", Check: checkWriteConcern},
		{Name: "readconcern", Check: checkReadConcern},
		{Name: "operationTimeout", Default: "5s", Check: outside.CheckTimeout},
	}
}

// settings are the checked metadata.
type settings struct {
	client     *options.ClientOptions
	database   string
	collection string
	read       *readconcern.ReadConcern
	write      *writeconcern.WriteConcern
	timeout    time.Duration
	compressed bool // the connection settings ask for compression
}

func read(m component.Values) (settings, error) {
	s := settings{database: m.Text("databaseName"), collection: m.Text("collectionName"),
		read: &readconcern.ReadConcern{Level: cmp.Or(m.Text("readconcern"), "local")}, write: writeConcern(m),
		timeout: outside.Interval(m, "operationTimeout")}
	uri, err := address(m)
	if err != nil {
		return s, err
	}
	s.client = options.Client().ApplyURI(uri)
	if err := s.client.Validate(); err != nil {
		// The cause may show the password.
		return s, invalid("the connection settings of MongoDB cannot be read",
			"write connectionString as mongodb://user:password@host:27017/?replicaSet=rs0, and escape special "+
				"characters such as @ and / in user and password as %40 and %2F")
	}
	if s.client.AppName == nil {
		s.client.SetAppName("quorate")
	}
	// The driver must not repeat a write, so that an error tells whether the write may have been applied.
	s.client.SetRetryWrites(false)
	// The driver allocates the length that a compressed message announces.
	s.compressed, s.client.Compressors = len(s.client.Compressors) > 0, nil
	check(s.client)
	return s, nil
}

// address returns the connection string. If the setting connectionString is empty, address builds the string from other
// fields, as Dapr does.
func address(m component.Values) (string, error) {
	text, host, server := m.Text("connectionString"), m.Text("host"), m.Text("server")
	params := m.Text("params")
	if params != "" && !strings.HasPrefix(params, "?") {
		params = "?" + params
	}
	login := ""
	if user, password := m.Text("username"), m.Text("password"); user != "" && password != "" {
		login = user + ":" + password + "@"
	}
	switch {
	case text != "" && (host != "" || server != "" || login != "" || params != ""):
		return "", invalid("connectionString is given, and host, server, username, password or params too",
			"put everything into connectionString, or omit it")
	case text != "":
		return text, nil
	case host != "" && server != "":
		return "", invalid("both host and server are given", "give host, or server for a DNS SRV record")
	case server != "" && login == "":
		return "mongodb+srv://" + server + "/" + params, nil
	case server != "":
		return "mongodb+srv://" + login + server + "/" + m.Text("databaseName") + params, nil
	case host != "":
		return "mongodb://" + login + host + "/" + m.Text("databaseName") + params, nil
	}
	return "", invalid("connectionString is missing", "give it, or host, username and password")
}

// writeConcern returns the write concern for eventual writes. As with Dapr, MongoDB acknowledges a write only after
// the write is in the journal.
func writeConcern(m component.Values) *writeconcern.WriteConcern {
	journal := true
	concern := &writeconcern.WriteConcern{W: 1, Journal: &journal}
	if text := m.Text("writeconcern"); text == writeconcern.WCMajority {
		concern.W = text
	} else if n, err := strconv.Atoi(text); err == nil {
		concern.W = n
	}
	return concern
}

func checkWriteConcern(text string) error {
	if text == "" || text == writeconcern.WCMajority || outside.Number(1, math.MaxUint8)(text) == nil {
		return nil
	}
	return errors.New(`is neither "majority" nor a number of servers from 1 to 255`)
}

func checkReadConcern(text string) error {
	switch text {
	case "", "local", "majority", "available", "linearizable", "snapshot":
		return nil
	}
	return errors.New("is none of local, majority, available, linearizable, snapshot")
}

// where returns the addresses of the servers and the database, for messages.
func (s settings) where() string {
	return strings.Join(s.client.Hosts, ", ") + ", database " + strconv.Quote(s.database)
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "mongodb.Open", Msg: msg, Hint: hint}
}
