-- Finds out on a new connection whether the server still has everything. `epoch` names this set of data.
-- For every start of a server, `starts` has how many changes the server knew at that time, so that it
-- doesn't matter how many it has seen since.
local new_epoch, server_start, oldest_reader = argument(), argument(), tonumber(argument())
if oldest_reader > needed_schema then
  call('SET', prefix .. ':needed_schema', oldest_reader)
end
local epoch = call('GET', prefix .. ':epoch')
if not epoch then
  epoch = new_epoch
  call('SET', prefix .. ':epoch', epoch)
end
local sequence = call('GET', prefix .. ':sequence') or '0'
local at_start = sequence
if server_start ~= '' then
  at_start = call('HGET', prefix .. ':starts', server_start)
  if not at_start then
    at_start = sequence
    call('HSET', prefix .. ':starts', server_start, at_start)
  end
end
return {epoch, sequence, at_start}
