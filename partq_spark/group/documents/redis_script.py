"""The script that runs inside Redis: it carries out the operations of one call, so that each call is one round trip,
and nothing comes between them. Lua only; `redis` makes its arguments and reads its answer.

Keys of a group begin with `partq:{store id/namespace/queue/group}:` (the braces keep them on one cluster slot). Each
folder of documents is one key, a hash with two fields for each document: its name → its value, and its name, space,
`version` → its token and when it was written, in milliseconds by Redis' clock. One without the other is no document:
a person removed the half of it. Values that others decide by have checksums of their own (`group.ownership`). A
version needs none: it tells whether the value was written again since, which for a heartbeat is a sign of life. One
that is damaged counts as another version, once, and the next write replaces it.

The first write is refused before anything is written if Redis has no memory left or is a replica. Numbers are formatted
with %.0f, or Lua would write 1.7e+12.
"""

from __future__ import annotations

import hashlib
from typing import Final

RIGHTS: Final = (
    "~partq:* &partq:*:news &partq:*:changed +eval +evalsha +info +ping +select +time +del +hget +hset +hdel +hexists"
    " +hgetall +publish +subscribe +psubscribe"
)
"""All that a user needs. Redis compares the pattern of a subscription with the rights letter by letter."""

REBORN: Final = "PARTQREBORN"
"""The beginning of the error with which the script refuses a caller that knows another life of the server."""

# A server that was a replica for a moment has a new replication id, also where no connection broke, and perhaps an old
# copy of everything. It is looked at together with the operations, so that nothing comes in between. ARGV begins with
# the id that the caller knows (empty: the server has none); then come the operations, each a word and its arguments, of
# which the first is the place of the folder's key in KEYS. The answer has one for each operation. What
# is read comes with the time, and as few texts of several lines: the client takes long for each that it receives.
SCRIPT: Final = (
    """
local known = ARGV[1]
if known ~= '' and not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. known, 1, true) then
  return redis.error_reply('"""
    + REBORN
    + """ the replication id is another one')
end
local clock = false
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  end
  return clock
end
local at = 2
local function take()
  at = at + 1
  return ARGV[at - 1]
end
local function version(key, name)
  local line = redis.call('HGET', key, name .. ' version')
  if line then return string.match(line, '^(%w+) ') or '', line end
end
local answers = {}
while at <= #ARGV do
  local verb, answer = take(), false
  if verb == 'load' then
    local key, name, expected = KEYS[tonumber(take())], take(), take()
    local token, line = version(key, name)
    if token ~= '' and token == expected then
      if redis.call('HEXISTS', key, name) == 1 then answer = 1 end
    elseif line then
      local value = redis.call('HGET', key, name)
      if value then answer = string.gsub(line, '\\n', '') .. ' ' .. now() .. '\\n' .. value end
    end
  elseif verb == 'list' then
    answer = {table.concat(redis.call('HGETALL', KEYS[tonumber(take())]), '\\n'), now()}
  elseif verb == 'swap' then
    local key, name, expected, token, value = KEYS[tonumber(take())], take(), take(), take(), take()
    local found = version(key, name)
    if expected == '' and found and redis.call('HEXISTS', key, name) == 0 then found = nil end
    if (found or '') == expected then
      redis.call('HSET', key, name, value, name .. ' version', token .. ' ' .. now())
      answer = 1
    end
  elseif verb == 'remove' then
    local key, name, expected = KEYS[tonumber(take())], take(), take()
    local found = version(key, name)
    if not found or found == expected then
      redis.call('HDEL', key, name, name .. ' version')
      answer = 1
    end
  elseif verb == 'announce' then
    redis.call('PUBLISH', take(), '')
  elseif verb == 'drop' then
    redis.call('DEL', unpack(KEYS))
  end
  answers[#answers + 1] = answer
end
return answers
"""
)

SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
"""By which the server knows the script once it has run there."""
