package cosmosdb

import (
	"errors"
	"net/url"
	"strconv"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

// timeout limits the time for one request of an application, as in Dapr.
const timeout = 20 * time.Second

// ttlHint is the hint in errors and logs about a container without time to live.
const ttlHint = "switch on Time to Live of the container, without a default"

// Fields returns the metadata fields of the component type, except those for Microsoft Entra ID. Names and defaults
// are the same as in Dapr.
func Fields() []component.Field {
	return []component.Field{
		{Name: "url", Required: true, Check: checkURL},
		{Name: "masterKey", Secret: true},
		{Name: "database", Required: true},
		{Name: "collection", Required: true},
		{Name: "contentType", Default: "application/json", Check: checkContentType},
	}
}

// settings are the checked metadata.
type settings struct {
	url, masterKey, database, collection string
}

func read(m component.Values) settings {
	return settings{url: m.Text("url"), masterKey: m.Text("masterKey"), database: m.Text("database"),
		collection: m.Text("collection")}
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" {
		return errors.New("is not an address such as https://account.documents.azure.com:443/")
	}
	return nil
}

func checkContentType(text string) error {
	if text != "application/json" {
		return errors.New("is not application/json: other forms of values are not supported")
	}
	return nil
}

// where returns the address, the database and the container, for messages.
func (s settings) where() string {
	return s.url + ", database " + strconv.Quote(s.database) + ", container " + strconv.Quote(s.collection)
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "cosmosdb.Open", Msg: msg, Hint: hint}
}
